"""How the cores that a run has change its speed (CODA, §III.B and §IV.B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.world import Run, World


class Cores(Physics):
    """A training run's speed, and with it the use of its GPUs, rises linearly up to the cores it can use.

    Beyond them it sinks slightly. A CPU job is as fast as the cores that it has are part of those it asked for.

    Args:
        sinks_by: Part of the speed that each core too many costs; the paper only says that it is little.
        most: The most that cores too many cost together.
    """

    def __init__(self, sinks_by: float = 0.004, most: float = 0.04) -> None:
        self._sinks_by = sinks_by
        self._most = most

    def speed(self, run: Run, world: World) -> float:
        """Seconds of service per second; 1 if the run needs no certain number of cores."""
        placement, model = run.placement, run.model
        need = model.cores if model.request.total_gpus else model.request.cpus
        if placement is None or not need or not placement.cpus:
            return 1.0
        cores = min(len(part.cpus) for part in placement.parts) if placement.others else len(placement.cpus)
        if cores <= need:
            return cores / need
        return 1.0 - min(self._most, self._sinks_by * (cores - need)) if model.request.total_gpus else 1.0
