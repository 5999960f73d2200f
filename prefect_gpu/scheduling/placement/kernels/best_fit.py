"""Best fit for a job that must be placed at once (Liquid, §5.2, Algorithm 1)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Mask, Plan
from prefect_gpu.scheduling.placement.kernels.placer import ByDomain, roomy
from prefect_gpu.scheduling.placement.kernels.topology import Topology, check_network_weight

# 0.9 lets the network decide and fullness break ties. The sum of eq. 4 rewards every further node with up to
# (1 - lambda); at 0.5 that outweighs the cost of leaving a node in racks of up to a handful of nodes.
NETWORK_WEIGHT = 0.9
TIGHT_RACKS = 2


@dataclass(frozen=True)
class GangBestFit(ByDomain):
    """Each container in turn goes where the score of the plan so far is smallest; ties to the lowest node number.

    Two things are settled here that Algorithm 1 leaves open or prints wrongly. Its line 18 takes a chosen node off
    the list, which would forbid two containers on one node; it is left out. And the order of the containers is the
    first server, the first worker, the other servers, the other workers (`in_turn`): with all servers first, none
    would have a partner to be near to. The plan is in the gang's own order all the same.

    Attributes:
        network_weight: The paper's lambda (see `Topology.score`).
    """

    network_weight: float = NETWORK_WEIGHT

    def __post_init__(self) -> None:
        check_network_weight(self.network_weight)

    def attempt(
        self, gang: Gang, left: Free, topology: Topology, allowed: Mask, rng: random.Random
    ) -> tuple[Plan | None, int | None]:
        """See `ByDomain.attempt`."""
        return self.fill(gang, left, topology, allowed)

    def fill(
        self, gang: Gang, left: Free, topology: Topology, allowed: Mask, first: int | None = None
    ) -> tuple[Plan | None, int | None]:
        """Algorithm 1, every container scored on all nodes at once; the first one goes to a given node, if any is."""
        total = topology.gpus_total
        divisor = np.maximum(total, 1)
        # In use by others; a node without GPUs counts as full. Set to 0 where the plan's score counts it already.
        used = np.where(total > 0, total - left.gpus, 1)
        # Sum of the costs between a node and the plan's servers and workers.
        costs = {"ps": np.zeros(len(total)), "worker": np.zeros(len(total))}
        placed = {"ps": 0, "worker": 0}
        alike = len({container.role for container in gang}) == 1
        domain: int | None = None
        plan = [-1] * len(gang)
        for index in in_turn(gang):
            container = gang[index]
            fits = left.fits(container) & allowed
            if domain is None and first is not None:
                fits &= np.arange(len(total)) == first
            partner = container.role if alike else "worker" if container.role == "ps" else "ps"
            near = placed[partner]
            pairs = near * (near + 1) // 2 if alike else near * (placed[container.role] + 1)
            # What the score has whichever node is chosen is left out of it.
            score = -(1.0 - self.network_weight) * ((used + container.gpus) / divisor)
            if pairs and self.network_weight:
                score += (self.network_weight / pairs) * costs[partner]
            node = int(np.where(fits, score, np.inf).argmin())
            if not fits[node]:
                return None, domain
            if domain is None:
                domain = int(topology.domains[node])
                allowed = allowed & (topology.domains == domain)
            costs[container.role] += topology.costs_from(node)
            placed[container.role] += 1
            used[node] = 0
            left.take_one(container, node)
            plan[index] = node
        return tuple(plan), domain


@dataclass(frozen=True)
class AnchoredBestFit(GangBestFit):
    """Best fit, from its own first node and from a few others; the plan with the smallest score is kept. Ours.

    The first container of a gang has no partner to be near to, so Algorithm 1 puts it on the fullest node, and the
    rest of the gang has to leave that node. Here the first container is also tried on the fullest node that holds the
    whole gang, on the freest nodes of the racks that hold it with the least to spare, and on the freest node of all.
    Never worse than `GangBestFit` by the score, and a few times slower.
    """

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """See the class and `Placer.place`."""
        found = super().place(gang, free, topology, rng)
        plans = [] if found is None else [found]
        allowed = roomy(gang, free, topology)
        for anchor in self._anchors(gang, free, topology, allowed):
            plan, _ = self.fill(gang, free.copy(), topology, allowed, anchor)
            if plan is not None:
                plans.append(plan)
        return min(plans, key=lambda plan: topology.score(gang, plan, free, self.network_weight), default=None)

    @staticmethod
    def _anchors(gang: Gang, free: Free, topology: Topology, allowed: Mask) -> list[int]:
        """The first nodes to try, each once."""
        if len(gang) == 1 or not allowed.any():
            return []
        gpus = sum(container.gpus for container in gang)
        open_gpus = np.where(allowed, free.gpus, -1)
        anchors = [int(open_gpus.argmax())]
        whole = np.flatnonzero(open_gpus >= gpus)
        if len(whole):
            anchors.append(int(whole[free.gpus[whole].argmin()]))
        room = np.bincount(topology.racks, weights=np.where(allowed, free.gpus, 0))
        spare = np.where(room >= gpus, room, np.inf)
        for rack in np.argsort(spare, kind="stable")[:TIGHT_RACKS]:
            if np.isfinite(spare[rack]):
                anchors.append(int(np.where(topology.racks == rack, open_gpus, -1).argmax()))
        return list(dict.fromkeys(anchors))


def in_turn(gang: Gang) -> list[int]:
    """The order in which a gang's containers are placed: one server, one worker, the other servers, the workers.

    Among equals in role those with more GPUs go first, as they fit into fewer places.
    """
    largest = sorted(range(len(gang)), key=lambda index: (-gang[index].gpus, -gang[index].cpus, index))
    servers = [index for index in largest if gang[index].role == "ps"]
    workers = [index for index in largest if gang[index].role != "ps"]
    return servers[:1] + workers[:1] + servers[1:] + workers[1:]
