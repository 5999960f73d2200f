"""Asks runs for a checkpoint before their devices leave service; see ``state/endings.py``."""

from __future__ import annotations

import math

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.state.endings import end_of, notice_s


def leave_in_time(decision: Decision) -> bool:
    """Stop runs whose devices are about to leave service, each as long before as it takes to save; whether any was.

    They wait again, and carry on elsewhere. A run that cannot be stopped stays until it ends, and its story says what
    will happen. This is done for all profiles: where no device has an end, it does nothing.
    """
    state = decision.state
    if not state.any_end:
        return False
    stopped = False
    for job in list(state.running.values()):
        end, what, why = end_of(job, state)
        if end == math.inf or job.id not in state.running or job.status is Status.SAVING:
            continue
        moment = end - notice_s(job)
        if moment > decision.now:
            decision.look_again_at(moment)
        elif decision.may_give_way(job):
            decision.preempt(job, words(end, what, why, decision.now))
            stopped = True
        else:
            _warn(job, end, what, why, decision)
    return stopped


def words(end: float, what: str, why: str, now: float) -> str:
    """Why a run has to leave."""
    left_s = end - now
    when = f"leaves service in {left_s:.0f} s" if left_s > 0.0 else "leaves service now"
    return f"{what} {when}{f' ({why})' if why else ''}"


def _warn(job: Job, end: float, what: str, why: str, decision: Decision) -> None:
    if job.behind is None and job.warned_of != end:
        job.warned_of = end
        job.story.append((decision.now, f"cannot be stopped, and {words(end, what, why, decision.now)}"))
