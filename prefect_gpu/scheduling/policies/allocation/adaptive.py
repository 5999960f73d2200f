"""Ours: whatever makes the sum of completion times fall fastest with what the outside world can do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.abilities import Preemption
from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.batch import BatchWindow
from prefect_gpu.scheduling.policies.allocation.displace import Displace
from prefect_gpu.scheduling.policies.allocation.filling import Filling
from prefect_gpu.scheduling.policies.allocation.interleaved import Interleaved
from prefect_gpu.scheduling.policies.allocation.multi_array import MultiArray
from prefect_gpu.scheduling.policies.cores import CoreHistory
from prefect_gpu.scheduling.policies.cpu_array import CpuArray

if TYPE_CHECKING:
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk


class Adaptive(Allocation):
    """Chooses how to allocate by what is possible, what is asked and what is known.

    - Moving is free: :class:`Interleaved` if all jobs that wait or run may share and say how long their stages take;
      else :class:`Filling`, the set of jobs that is worth most.
    - Jobs that only need cores are about, and cores can be changed: :class:`MultiArray`, CODA's; where nobody can be
      stopped, those jobs are placed by :class:`.CpuArray`, and all others as ever.
    - Gangs wait, or nobody can be stopped: :class:`BatchWindow`, Liquid's, without a window: a burst of gangs is
      placed together, and everybody else by backfilling, with reservations for those who have waited long.
    - Else :class:`Displace`: a job makes room for one that is clearly better, because stopping it costs something.

    Args:
        history: What cores jobs needed; shared with the tuning.
        advantage: See :class:`Displace`.
    """

    ranks_running = True

    def __init__(self, history: CoreHistory | None = None, advantage: float = 0.5) -> None:
        self._displace = Displace(advantage)
        self._interleaved, self._filling = Interleaved(), Filling()
        self._batch, self._arrays = BatchWindow(window_s=0.0), MultiArray(history)
        self._needs_arrays = False
        self._history = history if history is not None else CoreHistory()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        for one in (self._displace, self._interleaved, self._filling, self._batch, self._arrays):
            one.bind(state)

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        how, profile = self._how(desk), desk.profile
        if how is self._batch and desk.abilities.cores and desk.abilities.preemption is Preemption.NONE:
            desk.profile = replace(profile, placement=CpuArray(profile.placement, self._history))
        how.allocate(desk)
        desk.profile = profile

    def _how(self, desk: Desk) -> Allocation:
        if desk.abilities.free_moves:
            return self._interleaved if _all_interleave(desk) else self._filling
        lines = desk.state.queue_of_waiting.lines()
        stops = desk.abilities.preemption is not Preemption.NONE
        if desk.abilities.cores and stops and not self._needs_arrays:
            self._needs_arrays = any(line.request.gpus == 0 and line.request.cpus for line in lines)
        if self._needs_arrays:
            return self._arrays
        if not stops or any(line.request.is_gang for line in lines):
            return self._batch
        return self._displace


def _all_interleave(desk: Desk) -> bool:
    """Whether every job may share, can be moved, and says how long its stages take."""
    state = desk.state
    for line in state.queue_of_waiting.lines():
        request = line.request
        if not (request.shareable and request.preemptible and request.spans and request.total_gpus):
            return False
        if not line.entries[0][1].estimate.stages_s:
            return False
    return all(
        job.request.shareable and job.request.total_gpus and desk.may_stop(job) and job.estimate.stages_s
        for job in state.running.values()
    )
