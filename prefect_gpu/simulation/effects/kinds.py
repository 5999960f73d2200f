"""Programs are faster on some kinds of devices than on others, and not all by as much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Kinds(Physics):
    """A job is as fast as its program is on the slowest of its devices.

    Args:
        slower: By program and kind of device, its time there over that on which its seconds of service count.
        kind_of: The kind of each device.
    """

    def __init__(self, slower: Mapping[tuple[str, str], float], kind_of: Mapping[str, str]) -> None:
        self._slower, self._kind_of = slower, kind_of

    def speed(self, run: Run, world: World) -> float:
        """Seconds of service per second; 1 of what nothing is said."""
        if run.placement is None or not run.placement.all_devices:
            return 1.0
        kinds = {self._kind_of[device] for device in run.placement.all_devices}
        return 1.0 / max(self._slower.get((run.model.kind, kind), 1.0) for kind in kinds)

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """Nobody else."""
        return ()
