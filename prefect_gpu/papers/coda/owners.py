"""Ours with CODA's arrays, where every job says whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.jobs import Request
    from prefect_gpu.scheduling.state.waiting import Line


class ArraysSuit:
    """Whether :class:`.MultiArray` is to decide: jobs that need cores only are about, and all are as it assumes."""

    def __init__(self) -> None:
        self._cpu_jobs_seen = False

    def __call__(self, decision: Decision) -> bool:
        """See the class."""
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
