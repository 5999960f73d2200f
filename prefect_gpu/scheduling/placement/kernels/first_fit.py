"""The simplest placer: the first node that can hold a container."""

from __future__ import annotations

import random

from prefect_gpu.scheduling.placement.kernels.base import Greedy
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Ints
from prefect_gpu.scheduling.placement.kernels.topology import Topology


class FirstFit(Greedy):
    """The node with the lowest number."""

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        return int(candidates[0])
