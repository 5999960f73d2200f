"""How runs on one node slow each other down through its memory bandwidth (CODA, §IV.C)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class MemoryBandwidth(Physics):
    """From three quarters of a node's memory bandwidth on, sensitive runs lose speed, linearly.

    A run uses ``JobModel.memory_bandwidth`` of its node's at full speed, and less with fewer cores than it needs.

    Args:
        limit: Part of the bandwidth from which on runs are slowed.
    """

    def __init__(self, limit: float = 0.75) -> None:
        self._limit = limit

    def speed(self, run: Run, world: World) -> float:
        """Factor on the run's speed."""
        sensitivity, placement = run.model.memory_sensitivity, run.placement
        if not sensitivity or placement is None:
            return 1.0
        worst = max(self._used(name, world) for name in placement.nodes)
        return 1.0 - sensitivity * min(1.0, max(0.0, worst - self._limit) / (1.0 - self._limit))

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """Everybody on its nodes, if bandwidth is short there with it or without it."""
        placement = run.placement
        if placement is None or not run.model.memory_bandwidth:
            return ()
        return [
            other
            for name in placement.nodes
            if self._used(name, world) + run.model.memory_bandwidth > self._limit
            for other in world.on_node[name].values()
        ]

    def pressure(self, node_id: str, world: World) -> dict[str, float]:
        """Part of the node's bandwidth that each run on it uses."""
        return {name: _use(run) for name, run in world.on_node[node_id].items() if run.model.memory_bandwidth}

    def _used(self, node_id: str, world: World) -> float:
        return sum(_use(run) for run in world.on_node[node_id].values() if run.model.memory_bandwidth)


def _use(run: Run) -> float:
    if run.status is not Status.TRAINING or run.placement is None:
        return 0.0
    model = run.model
    need = model.cores if model.request.total_gpus else model.request.cpus
    cores = len(run.placement.cpus)
    return model.memory_bandwidth * (min(1.0, cores / need) if need and cores else 1.0)
