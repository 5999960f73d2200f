"""Where the peers that DeepShare is compared with place jobs: evenly, whoever else is there."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.spreading import (
    by_domain,
    can_spread,
    fits_evenly,
    pieces,
    placed,
    widths,
)
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.state.fits import free_by_node

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


class EvenSpread(PlacementPolicy):
    """Spread over the first of several numbers of nodes that fits, on the nodes of lowest number that have room.

    Args:
        preferred: Numbers of nodes, the preferred first. Jobs that none of them divides, jobs that may not be split,
            and those that not even empty nodes could hold in equal parts, go where :class:`BestFit` puts them.
    """

    def __init__(self, preferred: Sequence[int] = (4, 2)) -> None:
        self._preferred = tuple(preferred)
        self._otherwise = BestFit()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        found = widths(job.request, self._preferred) if can_spread(job.request) else ()
        if not found:
            return self._otherwise.place(job, state, sharing, kept)
        count, size = pieces(job.request)
        room = free_by_node(job, state, kept)
        for width in found:
            for numbers in by_domain(
                state, [n for n, devices in room.items() if len(devices) >= count // width * size]
            ):
                if len(numbers) >= width:
                    return placed(job, numbers[:width], room, state, sharing)
        return None if fits_evenly(job, state, found) else self._otherwise.place(job, state, sharing, kept)
