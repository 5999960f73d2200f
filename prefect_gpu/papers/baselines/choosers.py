"""The simple placers, which the papers compare with: random, even, pack and static slots."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from prefect_gpu.scheduling.placement.kernels.base import Greedy
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Ints
from prefect_gpu.scheduling.placement.kernels.first_fit import FirstFit
from prefect_gpu.scheduling.placement.kernels.topology import Topology


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


@dataclass(frozen=True)
class StaticSlots(FirstFit):
    """Every node is cut into slots of n GPUs, and a container takes whole slots (the baseline of F-scheduling, §5).

    What is left of a node when n does not divide its GPUs is never used. A container without GPUs takes no slot.

    Attributes:
        slot_gpus: n.
    """

    slot_gpus: int = 1

    def __post_init__(self) -> None:
        if self.slot_gpus < 1:
            raise ValueError(f"slot_gpus is {self.slot_gpus}: a slot has at least one GPU")

    def occupied(self, container: Container) -> Container:
        """See `Placer.occupied`: the GPUs rounded up to whole slots."""
        return replace(container, gpus=-(-container.gpus // self.slot_gpus) * self.slot_gpus)


def _smallest(values: Ints, candidates: Ints) -> Ints:
    """The candidates with the smallest value."""
    return candidates[values == values.min()]
