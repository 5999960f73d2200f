"""Ours with CODA's arrays, where every job says whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.papers.coda.multi_array import MultiArray
from prefect_gpu.scheduling.allocation.base import Allocation

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.jobs import Request
    from prefect_gpu.scheduling.state.state import State
    from prefect_gpu.scheduling.state.waiting import Line


class ArraysOr(Allocation):
    """:class:`.MultiArray` while jobs that only need cores are about and all jobs are such as it assumes.

    Args:
        otherwise: Allocates at all other times.
    """

    def __init__(self, otherwise: Allocation) -> None:
        self.ranks_running = otherwise.ranks_running
        self._otherwise, self._arrays = otherwise, MultiArray()
        self._cpu_jobs_seen = False

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        self._otherwise.bind(state)
        self._arrays.bind(state)

    def allocate(self, decision: Decision) -> None:
        """See the class."""
        (self._arrays if self._suits(decision) else self._otherwise).allocate(decision)

    def _suits(self, decision: Decision) -> bool:
        lines = decision.state.queue_of_waiting.lines()
        if not self._cpu_jobs_seen:
            self._cpu_jobs_seen = any(line.request.gpus == 0 and line.request.cpus for line in lines)
        if not (self._cpu_jobs_seen and decision.abilities.cores) or decision.state.firm_count:
            return False
        return all(decision.can_stop(line.entries[0][1]) for line in lines) and _as_in_arrays(decision, lines)


def _as_in_arrays(decision: Decision, lines: list[Line]) -> bool:
    """Whether all jobs, which may all be stopped, are also otherwise such as CODA's arrays assume.

    All say whose they are, for the arrays are divided fairly between owners. None shares devices, none comes before
    others by its queue, and none has lost patience: the arrays know of no such things. Whoever borrows cores or devices
    can then be made to give them back.
    """
    state = decision.state
    queues = {line.queue for line in lines} | {job.queue for job in state.running.values()}
    return (
        len({state.queue(queue).priority for queue in queues}) <= 1
        and all(_fits_arrays(line.request) and not line.entries[0][1].impatient for line in lines)
        and all(_fits_arrays(job.request) for job in state.running.values())
    )


def _fits_arrays(request: Request) -> bool:
    return bool(request.owner) and not request.shareable
