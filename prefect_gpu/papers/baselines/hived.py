"""Buddy cells in the manner of HiveD, the baseline of Liquid's §7: GPUs in powers of two, nodes, racks, domains."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from prefect_gpu.papers.baselines.choosers import Portioned, taken
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Ints, Mask, Plan
from prefect_gpu.scheduling.placement.kernels.placer import roomy
from prefect_gpu.scheduling.placement.kernels.topology import Topology


@dataclass(frozen=True)
class HiveD(Portioned):
    """The whole gang into the smallest cell that holds it: one node, else one rack, else one domain.

    Inside, each container takes the smallest free cell of GPUs that is large enough, so that large cells stay whole;
    among equals the rack with the fewest wholly free nodes, then the lowest node number. Of the racks that hold a
    gang, the one with the fewest free GPUs is taken, and likewise of the domains.

    The cells are read off the free counts: a node with f free GPUs is taken to hold the cells of f's binary digits,
    which is what buddy allocation leaves behind while nothing is given back.
    """

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """See the class and `Placer.place`."""
        whole = taken(self, gang)
        allowed = roomy(whole, free, topology)
        for nodes in self._cells(whole, free, topology, allowed):
            plan = self._fill(whole, free.copy(), topology, nodes)
            if plan is not None:
                return plan
        return None

    def occupied(self, container: Container) -> Container:
        """The GPUs rounded up to a power of two."""
        return replace(container, gpus=cell_gpus(container.gpus))

    @staticmethod
    def _cells(gang: Gang, free: Free, topology: Topology, allowed: Mask) -> Iterator[Ints]:
        """The nodes of each cell that may hold a gang, the most wanted cell first."""
        gpus = sum(container.gpus for container in gang)
        cpus = sum(container.cpus for container in gang)
        fits = (free.gpus >= gpus) & (free.cpus >= cpus)
        nodes = np.flatnonzero(fits & allowed)
        if len(nodes):  # powers of two whose sum fits a node do fit it together, so the best node will do
            intact = _intact_in_rack(free, topology)[nodes]
            smallest = _smallest_cell(free.gpus[nodes], cell_gpus(gpus) or 1)
            yield nodes[np.lexsort((nodes, intact, free.gpus[nodes], smallest))[:1]]
        for cells in (topology.racks, topology.domains):
            room = np.bincount(cells, weights=free.gpus * allowed)
            for cell in np.lexsort((np.arange(len(room)), room)):
                if room[cell] >= gpus:
                    members = np.flatnonzero((cells == cell) & allowed)
                    if len(members):
                        yield members

    @staticmethod
    def _fill(gang: Gang, left: Free, topology: Topology, nodes: Ints) -> Plan | None:
        """Place a gang on some nodes, the largest containers first."""
        plan = [-1] * len(gang)
        allowed = np.zeros(len(topology), dtype=np.bool_)
        allowed[nodes] = True
        for index in sorted(range(len(gang)), key=lambda index: (-gang[index].gpus, index)):
            container = gang[index]
            candidates = np.flatnonzero(left.fits(container) & allowed)
            if not len(candidates):
                return None
            smallest = _smallest_cell(left.gpus[candidates], container.gpus or 1)
            intact = _intact_in_rack(left, topology)[candidates]
            best = int(candidates[np.lexsort((candidates, intact, smallest))[0]])
            left.take_one(container, best)
            plan[index] = best
        return tuple(plan)


def cell_gpus(gpus: int) -> int:
    """The size of the smallest cell that holds so many GPUs: the next power of two; 0 for none."""
    return 1 << (gpus - 1).bit_length() if gpus else 0


def _smallest_cell(free_gpus: Ints, gpus: int) -> Ints:
    """Size of the smallest cell, among those of each count's binary digits, that holds so many GPUs (a power of two).

    Where none is so large (several cells together may be), it is larger than any.
    """
    suitable = free_gpus & ~(gpus - 1)  # the digits below the wanted size are cells too small
    smallest: Ints = np.where(suitable, suitable & -suitable, np.iinfo(np.int64).max)
    return smallest


def _intact_in_rack(free: Free, topology: Topology) -> Ints:
    """How many wholly free nodes each node's rack has, shape (nodes,)."""
    whole = (free.gpus == topology.gpus_total).astype(np.float64)
    counts: Ints = np.bincount(topology.racks, weights=whole).astype(np.int64)[topology.racks]
    return counts
