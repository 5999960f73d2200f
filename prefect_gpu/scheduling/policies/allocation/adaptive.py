"""Ours: whatever makes the sum of completion times fall fastest with what the outside world can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.batch import BatchWindow
from prefect_gpu.scheduling.policies.allocation.considerate import Considerate
from prefect_gpu.scheduling.policies.allocation.filling import Filling
from prefect_gpu.scheduling.policies.allocation.interleaved import Interleaved
from prefect_gpu.scheduling.policies.allocation.multi_array import MultiArray
from prefect_gpu.scheduling.policies.contention import Key, SensitivityTable
from prefect_gpu.scheduling.policies.cores import CoreHistory
from prefect_gpu.scheduling.policies.cpu_array import CpuArray
from prefect_gpu.scheduling.policies.parted import Parted

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Request
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk
    from prefect_gpu.scheduling.waiting import Line


class Adaptive(Allocation):
    """Chooses how to allocate by what is possible, what is asked and what is known.

    - Moving is free: :class:`Interleaved` if all jobs that wait or run may share and say how long their stages take;
      else :class:`Filling`, the set of jobs that is worth most.
    - Jobs that only need cores are about, cores can be changed, and all jobs are such as CODA's arrays assume:
      :class:`MultiArray`, CODA's. Otherwise those jobs are placed by :class:`.CpuArray`, and all others as ever.
    - :class:`.Displace`: a job starts where it fits, devices are kept for those who have waited long, and jobs that may
      be stopped make room for one that is clearly better, because stopping them costs something. Where it is known how
      jobs on several nodes slow each other down, they are kept from doing so (:class:`Considerate`).
    - Gangs wait, or some job may not be stopped: :class:`BatchWindow`, Liquid's, without a window, before that: a burst
      is placed together, since where these start is where they stay. Not while gangs wait of which it is known how they
      slow others down: it knows of no such thing.

    What decides is what the jobs say, those that run and those that wait, and not what the world could do: where no job
    may be stopped, nothing else happens than in a world that stops nobody.

    Args:
        history: What cores jobs needed; shared with the tuning.
        advantage: See :class:`.Displace`.
        table: See :class:`Considerate`; so are the next two.
    """

    ranks_running = True

    def __init__(
        self,
        history: CoreHistory | None = None,
        advantage: float = 0.5,
        table: SensitivityTable | None = None,
        parted: Parted | None = None,
        speeds: Mapping[Key, float] | None = None,
    ) -> None:
        known = SensitivityTable() if table is None else table
        self._displace = Considerate(known, Parted() if parted is None else parted, speeds, advantage)
        self._interleaved, self._filling = Interleaved(), Filling()
        self._batch, self._arrays = BatchWindow(window_s=0.0, others=self._displace), MultiArray(history)
        self._cpu_jobs_seen = False
        self._history = history if history is not None else CoreHistory()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        for one in (self._displace, self._interleaved, self._filling, self._batch, self._arrays):
            one.bind(state)

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        how, profile = self._how(desk), desk.profile
        if how in (self._batch, self._displace) and desk.abilities.cores:
            desk.profile = replace(profile, placement=CpuArray(profile.placement, self._history))
        how.allocate(desk)
        desk.profile = profile

    def _how(self, desk: Desk) -> Allocation:
        if desk.abilities.free_moves:
            return self._interleaved if _all_interleave(desk) else self._filling
        lines = desk.state.queue_of_waiting.lines()
        if not self._cpu_jobs_seen:
            self._cpu_jobs_seen = any(line.request.gpus == 0 and line.request.cpus for line in lines)
        all_stop = not desk.state.firm_count and all(desk.can_stop(line.entries[0][1]) for line in lines)
        if all_stop and self._cpu_jobs_seen and desk.abilities.cores and _as_in_arrays(desk, lines):
            return self._arrays
        if any(line.request.is_gang and self._displace.concerns(line.entries[0][1]) for line in lines):
            return self._displace
        return self._displace if all_stop and not any(line.request.is_gang for line in lines) else self._batch


def _as_in_arrays(desk: Desk, lines: list[Line]) -> bool:
    """Whether all jobs, which may all be stopped, are also otherwise such as CODA's arrays assume.

    All say whose they are, for the arrays are divided fairly between owners. None shares devices, none comes before
    others by its queue, and none has lost patience: the arrays know of no such things. Whoever borrows cores or devices
    can then be made to give them back.
    """
    state = desk.state
    queues = {line.queue for line in lines} | {job.queue for job in state.running.values()}
    return (
        len({state.queue(queue).priority for queue in queues}) <= 1
        and all(_fits_arrays(line.request) and not line.entries[0][1].impatient for line in lines)
        and all(_fits_arrays(job.request) for job in state.running.values())
    )


def _fits_arrays(request: Request) -> bool:
    return bool(request.owner) and not request.shareable


def _all_interleave(desk: Desk) -> bool:
    """Whether every job may share, can be moved, says how long its stages take, and could have any of the devices."""
    state = desk.state
    smallest = min(state.device_sizes, default=0)
    for line in state.queue_of_waiting.lines():
        request = line.request
        if not (request.shareable and request.preemptible and request.spans and request.total_gpus):
            return False
        if not line.entries[0][1].estimate.stages_s or line.entries[0][1].least_bytes > smallest:
            return False
    return all(
        job.request.shareable
        and job.request.total_gpus
        and desk.may_stop(job)
        and job.estimate.stages_s
        and job.least_bytes <= smallest
        for job in state.running.values()
    )
