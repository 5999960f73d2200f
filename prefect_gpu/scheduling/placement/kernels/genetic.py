"""The grouping genetic algorithm that places a batch of gangs together (Liquid, §5.3)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prefect_gpu.scheduling.placement.kernels.best_fit import NETWORK_WEIGHT, AnchoredBestFit, GangBestFit, in_turn
from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Ints, Plan
from prefect_gpu.scheduling.placement.kernels.genome import INVALID, Batch, Chromosome, Groups
from prefect_gpu.scheduling.placement.kernels.placer import Placer, roomy
from prefect_gpu.scheduling.placement.kernels.topology import Topology, check_network_weight

DRAWS = 8
"""How often random fit draws a node for a container before it gives up."""

# Containers x population x generations at most: without a clock, it keeps large batches short. The first population is
# always made; for 64 gangs on 1,024 nodes that alone is a second or two.
_BUDGET = 40_000
_PATIENCE = 20  # generations without a better plan, after which it stops
_TOURNAMENT = 3  # plans in each round of the selection; the fittest of them survives
_ORDINARY = 0.15  # share of the survivors that are drawn whatever their fitness
_MUTATION = 0.4  # chance that a child is mutated


@dataclass(frozen=True)
class Genetic(Placer):
    """Evolves plans for a batch; never worse than best fit one gang after the other.

    The gangs that it plans together are those for which best fit finds room, one after the other; that plan is in the
    first population, and so is the one of `AnchoredBestFit` if it has room for all. Of all plans seen, it returns the
    fittest whose network cost is no larger than best fit's. A gang for which there was no room is tried once more on
    what the better plan leaves.

    Attributes:
        network_weight: The paper's lambda (see `Topology.score`).
        population: Plans per generation.
        generations: Generations at most.
    """

    network_weight: float = NETWORK_WEIGHT
    population: int = 32
    generations: int = 60

    def __post_init__(self) -> None:
        check_network_weight(self.network_weight)
        for name, least in (("population", 2), ("generations", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: give {least} or more")

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """A batch of one gang; see `Placer.place`."""
        return self.place_batch((gang,), free, topology, rng)[0]

    def place_batch(
        self,
        gangs: Sequence[Gang],
        free: Free,
        topology: Topology,
        rng: random.Random | None = None,
    ) -> list[Plan | None]:
        """A plan for each gang, or None where there is no room for it.

        Args:
            gangs: The batch; earlier gangs have the first claim to room.
            rng: Chance; without it, a generator with seed 0. The same state gives the same plans.
        """
        rng = rng or random.Random(0)
        simple = GangBestFit(self.network_weight)
        plans = _one_by_one(simple, gangs, free, topology)
        admitted = [number for number, plan in enumerate(plans) if plan is not None]
        if not admitted:
            return plans
        together = [gangs[number] for number in admitted]
        batch = Batch(together, free, topology, self.network_weight)
        known = batch.chromosome(batch.groups(plan for plan in plans if plan is not None))
        anchored = _one_by_one(AnchoredBestFit(self.network_weight), together, free, topology)
        whole = [plan for plan in anchored if plan is not None]
        also = [batch.chromosome(batch.groups(whole))] if len(whole) == len(together) else []
        first = [known, *also, *beginners(batch, self.population, rng)]
        best = self._evolve(batch, first, rng)
        left = free.copy()
        for number, better in zip(admitted, batch.plans(best.groups), strict=True):
            plans[number] = better
            left.take(gangs[number], better)
        late = [number for number, plan in enumerate(plans) if plan is None]
        rest = [gangs[number] for number in late]
        for number, plan in zip(late, _one_by_one(simple, rest, left, topology), strict=True):
            plans[number] = plan
        return plans

    # -- evolution --------------------------------------------------------------------------------------------------

    def _evolve(self, batch: Batch, first: Sequence[Chromosome], rng: random.Random) -> Chromosome:
        """The best plan found; the first of the first population is the one to better."""
        known = first[0]
        plans = self._distinct(first)
        best = self._better(known, plans, known)
        idle = 0
        for _ in range(min(self.generations, _BUDGET // (self.population * len(batch.containers)))):
            if idle >= _PATIENCE:
                break
            children = [self._child(batch, plans, rng) for _ in range(self.population)]
            plans = self._survivors(self._distinct([*plans, *children]), rng)
            better = self._better(best, plans, known)
            idle = 0 if better.fitness > best.fitness else idle + 1
            best = better
        return best

    @staticmethod
    def _better(best: Chromosome, plans: Sequence[Chromosome], known: Chromosome) -> Chromosome:
        for plan in plans:
            if plan.fitness > best.fitness and plan.network_cost <= known.network_cost:
                best = plan
        return best

    @staticmethod
    def _distinct(plans: Sequence[Chromosome]) -> list[Chromosome]:
        """The valid plans, each once."""
        return list({plan.key: plan for plan in plans if plan.fitness > INVALID}.values())

    def _child(self, batch: Batch, plans: Sequence[Chromosome], rng: random.Random) -> Chromosome:
        giver, taker = self._chosen(plans, rng), self._chosen(plans, rng)
        groups = taker.groups
        if giver is not taker:
            node = rng.choice(list(giver.groups))
            groups = batch.crossover(groups, node, giver.groups[node], rng.randint(0, len(groups)))
        if (giver is taker or rng.random() < _MUTATION) and len(groups) > 1:
            groups = batch.mutated(groups, rng.choice(list(groups)))
        return batch.chromosome(groups)

    def _chosen(self, plans: Sequence[Chromosome], rng: random.Random) -> Chromosome:
        """The winner of one tournament."""
        return max((rng.choice(plans) for _ in range(_TOURNAMENT)), key=lambda plan: plan.fitness)

    def _survivors(self, plans: list[Chromosome], rng: random.Random) -> list[Chromosome]:
        """The next population: the fittest, some ordinary plans drawn by chance, and winners of tournaments."""
        if len(plans) <= self.population:
            return plans
        survivors = [plans.pop(max(range(len(plans)), key=lambda index: plans[index].fitness))]
        for _ in range(int(_ORDINARY * self.population)):
            survivors.append(plans.pop(rng.randrange(len(plans))))
        while len(survivors) < self.population:
            drawn = [rng.randrange(len(plans)) for _ in range(_TOURNAMENT)]
            survivors.append(plans.pop(max(drawn, key=lambda index: plans[index].fitness)))
        return survivors


def _one_by_one(placer: Placer, gangs: Sequence[Gang], free: Free, topology: Topology) -> list[Plan | None]:
    """Plans for gangs placed in turn."""
    left = free.copy()
    plans: list[Plan | None] = []
    for gang in gangs:
        plan = placer.place(gang, left, topology)
        if plan is not None:
            left.take(gang, plan)
        plans.append(plan)
    return plans


def beginners(batch: Batch, count: int, rng: random.Random) -> Iterator[Chromosome]:
    """So many plans, some of which may be invalid.

    Half come from random fit, half from first fit. What first fit finds depends on the order of the nodes: by number;
    by free GPUs, the most first; by rack, the one with the most free GPUs first; then by rack from a random one on.
    """
    by_number: Ints = np.arange(len(batch.topology))
    by_free = np.argsort(-batch.free.gpus, kind="stable")
    racks = batch.topology.racks
    room = np.bincount(racks, weights=batch.free.gpus)
    by_rack = _by_rack(batch, np.argsort(np.argsort(-room, kind="stable"), kind="stable"))
    orders = [by_number, by_free, by_rack]
    for number in range(count):
        gangs = list(range(len(batch.gangs)))
        if number >= len(orders):
            rng.shuffle(gangs)
        containers = [batch.starts[gang] + index for gang in gangs for index in in_turn(batch.gangs[gang])]
        if number < len(orders):
            groups = batch.first_fit({}, containers, orders[number].tolist())
        elif number % 2:
            from_random_rack = (np.arange(len(room)) - rng.randrange(len(room))) % len(room)
            groups = batch.first_fit({}, containers, _by_rack(batch, from_random_rack).tolist())
        else:
            groups = random_fit(batch, containers, rng)
        yield batch.chromosome(groups)


def random_fit(batch: Batch, containers: list[int], rng: random.Random) -> Groups:
    """Each container on a random node that can hold it, in its gang's domain."""
    groups: Groups = {}
    domain_of: dict[int, int] = {}
    for number in containers:
        gang = batch.gang_of[number]
        fits = batch.free.fits(batch.containers[number])
        if gang in domain_of:
            fits = fits & (batch.topology.domains == domain_of[gang])
        else:
            fits = fits & roomy(batch.gangs[gang], batch.free, batch.topology)
        candidates = np.flatnonzero(fits)
        for _ in range(DRAWS if len(candidates) else 0):
            node = int(candidates[rng.randrange(len(candidates))])
            if batch.fits(node, groups.get(node, ()), number):
                groups[node] = (*groups.get(node, ()), number)
                domain_of[gang] = batch.domains[node]
                break
    return groups


def _by_rack(batch: Batch, place_of_rack: Ints) -> Ints:
    """The nodes by their rack's place; within a rack those with the most free GPUs first."""
    order: Ints = np.lexsort((-batch.free.gpus, place_of_rack[batch.topology.racks]))
    return order
