"""Ours: whatever makes the sum of completion times fall fastest with what the outside world can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.abilities import Preemption
from prefect_gpu.scheduling.policies.allocation.backfill import Backfill
from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.displace import Displace
from prefect_gpu.scheduling.policies.allocation.filling import Filling
from prefect_gpu.scheduling.policies.allocation.interleaved import Interleaved

if TYPE_CHECKING:
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk


class Adaptive(Allocation):
    """Chooses how to allocate by what is possible and what is known.

    - Nobody can be stopped: :class:`Backfill`, with reservations for those who have waited long.
    - Stopping costs something: :class:`Displace`, and only for those that are clearly better.
    - Moving is free: :class:`Interleaved` if all jobs that wait or run may share and say how long their stages take;
      else :class:`Filling`, the set of jobs that is worth most.
    """

    ranks_running = True

    def __init__(self) -> None:
        self._backfill, self._displace = Backfill(), Displace(advantage=0.5)
        self._interleaved, self._filling = Interleaved(), Filling()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        for one in (self._backfill, self._displace, self._interleaved, self._filling):
            one.bind(state)

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        self._how(desk).allocate(desk)

    def _how(self, desk: Desk) -> Allocation:
        if desk.abilities.preemption is Preemption.NONE:
            return self._backfill
        if not desk.abilities.free_moves:
            return self._displace
        return self._interleaved if _all_interleave(desk) else self._filling


def _all_interleave(desk: Desk) -> bool:
    """Whether every job may share, can be moved, and says how long its stages take."""
    state = desk.state
    for line in state.queue_of_waiting.lines():
        request = line.request
        if not (request.shareable and request.preemptible and request.spans and request.total_gpus):
            return False
        if not line.entries[0][1].estimate.stages_s:
            return False
    return all(job.request.shareable and desk.may_stop(job) and job.estimate.stages_s for job in state.running.values())
