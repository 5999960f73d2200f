"""Runs that share a device and each use a part of it (Liquid, §6.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Interference(Physics):
    """A run is slowed down by the use that others make of its device at the moments when it needs it.

    With mean utilisations u and v of two runs, the one with u meets the other for a part v of its kernels, and each
    such meeting costs ``meeting`` of a kernel. Beyond a sum of 1 the device is simply full.

    Args:
        meeting: See above, 0 to 1.
    """

    def __init__(self, meeting: float = 0.3) -> None:
        if not 0 <= meeting <= 1:
            raise ValueError(f"meeting is {meeting}: give a part of a kernel, 0 to 1")
        self._meeting = meeting

    def speed(self, run: Run, world: World) -> float:
        """The speed on the fullest of the run's devices."""
        placement = run.placement
        if placement is None or not placement.shared:
            return 1.0
        return min((self._on(run, device, world) for device in placement.all_devices), default=1.0)

    def _on(self, run: Run, device: str, world: World) -> float:
        on_it = world.on_device[device].values()
        others = sum(o.model.utilisation for o in on_it if o is not run and o.status is Status.TRAINING)
        return 1.0 / (max(1.0, run.model.utilisation + others) + self._meeting * min(1.0, others))

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """All that are on the same devices."""
        if run.placement is None or not run.placement.shared:
            return ()
        devices = run.placement.all_devices
        return {name: other for device in devices for name, other in world.on_device[device].items()}.values()
