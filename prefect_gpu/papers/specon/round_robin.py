"""SpeCon's first placement (§VI-A): devices in turns."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.placement.granting import grant

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


class RoundRobin(PlacementPolicy):
    """The first job goes to the first device, the second to the second, and so on: SpeCon's first placement (§VI-A).

    A job keeps its number from the first time that it is looked at. Where its device cannot hold it, the next that
    can does. Gangs and jobs with more or fewer devices than one are placed by best fit.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._next = 0
        self._otherwise = BestFit()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        if job.request.total_gpus != 1 or job.request.servers or not state.device_count:
            return self._otherwise.place(job, state, sharing, kept)
        number = self._numbers.get(job.id)
        if number is None:
            number = self._numbers[job.id] = self._next
            self._next += 1
            if len(self._numbers) > 2 * len(state.jobs) + 1000:
                self._numbers = {id_: at for id_, at in self._numbers.items() if id_ in state.jobs}
        hosts = [(books.node, device) for books in state.numbered for device in books.node.devices]
        for turn in range(len(hosts)):
            node, device = hosts[(number + turn) % len(hosts)]
            if device.id not in kept and sharing.fits(job, device, state):
                return grant(job, node, (device.id,), state, sharing)
        return None
