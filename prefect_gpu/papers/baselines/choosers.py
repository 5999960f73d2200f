"""The simple placers, which the papers compare with."""

from __future__ import annotations

import abc
import random
from dataclasses import dataclass, replace

import numpy as np

from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Ints, Mask, Plan
from prefect_gpu.scheduling.placement.kernels.placer import ByDomain, Placer
from prefect_gpu.scheduling.placement.kernels.topology import Topology

ASSUMED_CORES = 0.1
"""What kube-scheduler assumes a pod without requests uses, when it scores (not when it filters)."""


class Greedy(ByDomain):
    """One container after the other, in the gang's order, each on the best node by one rule."""

    def attempt(
        self, gang: Gang, left: Free, topology: Topology, allowed: Mask, rng: random.Random
    ) -> tuple[Plan | None, int | None]:
        """See `ByDomain.attempt`."""
        domain: int | None = None
        plan = []
        for container in gang:
            candidates = np.flatnonzero(left.fits(container) & allowed)
            if not len(candidates):
                return None, domain
            node = self.choose(container, candidates, left, topology, rng)
            if domain is None:
                domain = int(topology.domains[node])
                allowed = allowed & (topology.domains == domain)
            left.take_one(container, node)
            plan.append(node)
        return tuple(plan), domain

    @abc.abstractmethod
    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """The node for one container.

        Args:
            candidates: Numbers of the nodes that can hold it, rising; at least one.
            left: What is free, the gang's earlier containers deducted.
        """


class FirstFit(Greedy):
    """The node with the lowest number."""

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        return int(candidates[0])


class Random(Greedy):
    """Any node that can hold the container, all equally likely."""

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        return int(candidates[rng.randrange(len(candidates))])


class Even(Greedy):
    """The node with the fewest GPUs in use, then with the fewest cores in use, then the lowest number (spread)."""

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        candidates = _smallest((topology.gpus_total - left.gpus)[candidates], candidates)
        candidates = _smallest((topology.cpus_total - left.cpus)[candidates], candidates)
        return int(candidates[0])


class Pack(Greedy):
    """The node with the fewest free GPUs, then with the fewest free cores, then the lowest number."""

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        candidates = _smallest(left.gpus[candidates], candidates)
        candidates = _smallest(left.cpus[candidates], candidates)
        return int(candidates[0])


class KubernetesDefault(Greedy):
    """The node with the highest score of kube-scheduler's default, least allocated: a whole number from 0 to 100.

    It is 100 x (capacity - requested) / capacity, a pod that states no request being counted with a minimum. Of the
    resources that it looks at only cores are handed out here, so its second score, for their balance, is the same
    everywhere. It knows no extended resource: a pod's GPUs decide whether it fits and not where it goes. Three things
    differ: ties go to the lowest node number (kube-scheduler draws), a gang that does not fit whole is not started in
    part, and a gang stays in one domain.
    """

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        unused = np.maximum(left.cpus[candidates] - (container.cpus or ASSUMED_CORES), 0.0)
        score = np.floor(100.0 * unused / np.maximum(topology.cpus_total[candidates], 1))
        return int(candidates[score.argmax()])


class Portioned(Placer):
    """A placer under which a container takes more of its node than it asks for: GPUs come in fixed portions."""

    @abc.abstractmethod
    def occupied(self, container: Container) -> Container:
        """What a container takes of its node."""


def taken(placer: Placer, gang: Gang) -> Gang:
    """What a gang takes of its nodes: deducted from the free arrays, the placer sees its portions in them."""
    return tuple(map(placer.occupied, gang)) if isinstance(placer, Portioned) else gang


@dataclass(frozen=True)
class StaticSlots(Portioned):
    """Every node is cut into slots of n GPUs, and a container takes whole slots (the baseline of F-scheduling, §5).

    What is left of a node when n does not divide its GPUs is never used. A container without GPUs takes no slot.

    Attributes:
        slot_gpus: n.
    """

    slot_gpus: int = 1

    def __post_init__(self) -> None:
        if self.slot_gpus < 1:
            raise ValueError(f"slot_gpus is {self.slot_gpus}: a slot has at least one GPU")

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """The nodes with the lowest numbers; see `Placer.place`."""
        return FirstFit().place(taken(self, gang), free, topology, rng)

    def occupied(self, container: Container) -> Container:
        """The GPUs rounded up to whole slots."""
        return replace(container, gpus=-(-container.gpus // self.slot_gpus) * self.slot_gpus)


def _smallest(values: Ints, candidates: Ints) -> Ints:
    """The candidates with the smallest value."""
    return candidates[values == values.min()]
