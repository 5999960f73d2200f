"""Spreading jobs over devices that they share."""

from __future__ import annotations

from collections.abc import Container

from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.placement.granting import grant
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.fits import free_by_node
from prefect_gpu.scheduling.state.state import State


class Spread(PlacementPolicy):
    """A job that shares its only device goes to an idle one; if there is none, where nobody has come for longest.

    Those that are there are likely to leave first. All other jobs are placed by :class:`.BestFit`.
    """

    def __init__(self) -> None:
        self._otherwise = BestFit()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        request = job.request
        if not request.shareable or request.total_gpus != 1 or request.servers or request.spans:
            return self._otherwise.place(job, state, sharing, kept)
        for number, idle in free_by_node(job, state, kept).items():
            if idle:
                return grant(job, state.numbered[number].node, (idle[0].id,), state, sharing)
        best: tuple[tuple[float, int, int], str] | None = None
        for at, device_id in enumerate(state.shared_devices()):
            if not state.has_node(device_id) or device_id in kept:
                continue
            company = state.occupants(device_id)
            newest = max(other.granted_at or 0.0 for other in company)
            fitness = (newest, len(company), at)
            if (best is None or fitness < best[0]) and sharing.fits(job, state.device(device_id), state):
                best = fitness, device_id
        if best is None:
            return None
        return grant(job, state.numbered[state.number_of(best[1])].node, (best[1],), state, sharing)
