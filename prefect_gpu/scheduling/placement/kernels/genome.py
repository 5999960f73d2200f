"""Plans as the grouping genetic algorithm sees them: nodes with the containers on them (Liquid, §5.3, Figs. 7 to 9).

A *group* is a node with its containers, a *gene* is a container, a *chromosome* is a plan for a whole batch. Plain
Python numbers and lists here: a plan touches a handful of nodes, for which arrays would be slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.topology import Topology, weighted

INVALID = float("-inf")
"""Fitness of a plan that leaves a container unplaced or straddles domains: it never survives a selection."""

Groups = dict[int, tuple[int, ...]]
"""Node to the containers on it, numbered through the batch; the nodes in the plan's own order."""


@dataclass(frozen=True, eq=False)
class Chromosome:
    """A plan for the whole batch.

    Attributes:
        fitness: Equation 8, -(sum of the gangs' scores) - (nodes used); `INVALID` for a plan that cannot be.
        network_cost: Sum of the gangs' network costs (`Topology.network_cost`).
    """

    groups: Groups
    fitness: float
    network_cost: float

    @cached_property
    def key(self) -> frozenset[tuple[int, frozenset[int]]]:
        """The same for plans that put the same containers on the same nodes."""
        return frozenset((node, frozenset(members)) for node, members in self.groups.items())


class Batch:
    """The gangs to place together, what is free for them, and the operations on plans for them."""

    def __init__(self, gangs: Sequence[Gang], free: Free, topology: Topology, network_weight: float) -> None:
        self.gangs = gangs
        self.free = free
        self.topology = topology
        self.network_weight = network_weight
        self.containers = [container for gang in gangs for container in gang]
        self.starts = [sum(map(len, gangs[:number])) for number in range(len(gangs))]
        self.gang_of = [number for number, gang in enumerate(gangs) for _ in gang]
        self._gpus: list[int] = free.gpus.tolist()
        self._cpus: list[int] = free.cpus.tolist()
        self._used: list[int] = (topology.gpus_total - free.gpus).tolist()
        self.domains: list[int] = topology.domains.tolist()
        self.nodes = range(len(self.domains))
        # Children share most of their groups and plans with their parents: what is known of those is kept.
        self._cost_of: dict[tuple[int, Plan], float] = {}
        self._sums_of: dict[tuple[int, ...], tuple[int, int]] = {}

    # -- reading and making plans ---------------------------------------------------------------------------------

    def chromosome(self, groups: Groups) -> Chromosome:
        """A plan with its fitness. Groups that hold nothing are left out."""
        groups = {node: members for node, members in groups.items() if members}
        placed = sorted(container for members in groups.values() for container in members)
        if placed != list(range(len(self.containers))):
            return Chromosome(groups, INVALID, float("inf"))
        plans = self.plans(groups)
        asked = {node: self._sums(members)[0] for node, members in groups.items()}
        if not all(self._holds(node, members) for node, members in groups.items()):
            return Chromosome(groups, INVALID, float("inf"))
        score = network_cost = 0.0
        for number, plan in enumerate(plans):
            cost = self._network_cost(number, plan)
            # Used by anything else, the batch's other gangs included: so the order of the gangs does not matter.
            load = -sum(self.topology.filled(node, asked[node] + self._used[node]) for node in sorted(set(plan)))
            score += weighted(self.network_weight, cost, load)
            network_cost += cost
        return Chromosome(groups, -score - len(groups), network_cost)

    def plans(self, groups: Groups) -> list[Plan]:
        """The plan of each gang."""
        node_of = {container: node for node, members in groups.items() for container in members}
        plan = [node_of[container] for container in range(len(self.containers))]
        return [tuple(plan[start : start + len(gang)]) for start, gang in zip(self.starts, self.gangs, strict=True)]

    def groups(self, plans: Iterable[Plan]) -> Groups:
        """The groups of the gangs' plans; a node's place in the order is that of its first container."""
        groups: Groups = {}
        for container, node in enumerate(node for plan in plans for node in plan):
            groups[node] = (*groups.get(node, ()), container)
        return groups

    # -- what the genetic operators are made of --------------------------------------------------------------------

    def first_fit(self, groups: Groups, containers: Iterable[int], others: Sequence[int] = ()) -> Groups:
        """Place containers by first fit: on the plan's nodes in their order, then on other nodes in theirs.

        Each stays in its gang's domain. What fits nowhere stays unplaced, and the plan is invalid.
        """
        groups = dict(groups)
        domain_of = self._domains_of(groups)
        for container in containers:
            domain = domain_of.get(self.gang_of[container])
            for node in groups:
                if self.fits(node, groups[node], container, domain):
                    break
            else:
                unused = (node for node in others if node not in groups and self.fits(node, (), container, domain))
                node = next(unused, -1)
            if node >= 0:
                groups[node] = (*groups.get(node, ()), container)
                domain_of[self.gang_of[container]] = self.domains[node]
        return groups

    def inserted(self, groups: Groups, node: int, members: tuple[int, ...], position: int) -> tuple[Groups, list[int]]:
        """Insert a group before another plan's group of that position; first half of the crossover (Fig. 8, a and b).

        Groups that hold a container twice because of it are deleted, and so is the node's own former group.

        Returns:
            The groups, and the containers that were deleted with theirs and must be placed again.
        """
        taken = set(members)
        result: Groups = {}
        homeless: list[int] = []
        for number, (other, held) in enumerate(groups.items()):
            if number == position:
                result[node] = members
            if other == node or not taken.isdisjoint(held):
                homeless += [container for container in held if container not in taken]
            else:
                result[other] = held
        if position >= len(groups):
            result[node] = members
        return result, homeless

    def crossover(self, groups: Groups, node: int, members: tuple[int, ...], position: int) -> Groups:
        """Insert a group of another plan, and place what lost its node by first fit (Fig. 8).

        What the plan's remaining nodes cannot hold goes to a further node, so that fewer plans die.
        """
        result, homeless = self.inserted(groups, node, members, position)
        return self.first_fit(result, homeless, self.nodes)

    def mutated(self, groups: Groups, node: int) -> Groups:
        """Delete a group and place its containers on the plan's other nodes by first fit (Fig. 9).

        It never opens a node, so it can only shrink their number; where the others have no room the plan dies.
        """
        remaining = {other: held for other, held in groups.items() if other != node}
        return self.first_fit(remaining, groups[node])

    # -- costs and capacity -------------------------------------------------------------------------------------------

    def _network_cost(self, gang: int, plan: Plan) -> float:
        cost = self._cost_of.get((gang, plan))
        if cost is None:
            cost = self._cost_of[gang, plan] = self.topology.network_cost(self.gangs[gang], plan)
        return cost

    def _sums(self, members: tuple[int, ...]) -> tuple[int, int]:
        sums = self._sums_of.get(members)
        if sums is None:
            held = [self.containers[number] for number in members]
            sums = self._sums_of[members] = (
                sum(container.gpus for container in held),
                sum(container.cpus for container in held),
            )
        return sums

    def _holds(self, node: int, members: tuple[int, ...]) -> bool:
        gpus, cpus = self._sums(members)
        return gpus <= self._gpus[node] and cpus <= self._cpus[node]

    def fits(self, node: int, members: tuple[int, ...], container: int, domain: int | None = None) -> bool:
        """Whether a node of the domain (None: any) can hold one more container beside the plan's members there."""
        if domain is not None and self.domains[node] != domain:
            return False
        if self._gpus[node] < self.containers[container].gpus:
            return False  # most nodes fail here: a quick answer
        return self._holds(node, (*members, container))

    def _domains_of(self, groups: Groups) -> dict[int, int]:
        """The domain of each gang of which something is placed."""
        domain_of: dict[int, int] = {}
        for node, members in groups.items():
            for container in members:
                domain_of[self.gang_of[container]] = self.domains[node]
        return domain_of
