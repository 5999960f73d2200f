"""What every placer promises, and the loop that most of them share."""

from __future__ import annotations

import abc
import random

import numpy as np

from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Mask, Plan
from prefect_gpu.scheduling.placement.kernels.topology import Topology


class Placer(abc.ABC):
    """Chooses a node for each container of a gang.

    Every placer keeps three promises: no node is given more than it has free, a gang is placed whole or not at all,
    and never across two network domains. The same input gives the same plan.
    """

    @abc.abstractmethod
    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """A plan for a gang, or None. Must not change `free`.

        Args:
            gang: One or more containers.
            free: What is free now, of the topology's nodes.
            rng: Chance, for placers that need it; without one they draw from a generator with seed 0.
        """


class ByDomain(Placer):
    """Tries to place a gang where its first container goes, and then in other domains.

    The first container decides the domain. If the rest does not fit there, the domain is left out and everything
    starts again, so that a gang fails only where it fits into no domain in this way.
    """

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """See the class and `Placer.place`."""
        rng = rng or random.Random(0)
        allowed = roomy(gang, free, topology)
        while allowed.any():
            plan, domain = self.attempt(gang, free.copy(), topology, allowed, rng)
            if plan is not None:
                return plan
            if domain is None:
                return None  # the first container fits nowhere
            allowed &= topology.domains != domain
        return None

    @abc.abstractmethod
    def attempt(
        self, gang: Gang, left: Free, topology: Topology, allowed: Mask, rng: random.Random
    ) -> tuple[Plan | None, int | None]:
        """Try once.

        Args:
            left: What is free; changed as containers are placed.
            allowed: The nodes to choose from, shape (nodes,).

        Returns:
            The plan, or None and the domain in which it failed (None if it failed at the first container).
        """


def roomy(gang: Gang, free: Free, topology: Topology) -> Mask:
    """The nodes of the domains whose free GPUs and cores suffice for a gang in sum, shape (nodes,)."""
    if not gang:
        raise ValueError("gang is empty: give it at least one container")
    if len(free.gpus) != len(topology):
        raise ValueError(f"free has {len(free.gpus)} nodes and the topology {len(topology)}: give them the same nodes")
    enough = np.ones(int(topology.domains.max()) + 1, dtype=np.bool_)
    for array, asked in (
        (free.gpus, sum(container.gpus for container in gang)),
        (free.cpus, sum(container.cpus for container in gang)),
    ):
        if asked:
            enough &= np.bincount(topology.domains, weights=array) >= asked
    return enough[topology.domains]
