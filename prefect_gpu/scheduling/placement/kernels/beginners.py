"""The first population of the grouping genetic algorithm: first fit and random fit (Liquid, §5.3)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from prefect_gpu.scheduling.placement.kernels.best_fit import in_turn
from prefect_gpu.scheduling.placement.kernels.containers import Ints
from prefect_gpu.scheduling.placement.kernels.genome import Batch, Chromosome, Groups
from prefect_gpu.scheduling.placement.kernels.placer import roomy

DRAWS = 8
"""How often random fit draws a node for a container before it gives up."""


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
