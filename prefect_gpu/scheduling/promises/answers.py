"""What a job with a deadline is told when it comes, and what is learned when it has ended."""

from __future__ import annotations

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.state import State

NO_PROMISES = "the scheduling profile of this pool keeps no promises: choose adaptive"


def answer(job: Job, promised: float | None, decision: Decision) -> bool:
    """Say at once whether a new job's deadline is promised.

    Args:
        promised: With which probability it was promised before; None: it was not asked yet.

    Returns:
        False if it is refused: then it does not wait.
    """
    state, request = decision.state, job.request
    if request.deadline_at is None:
        return True
    if promised is not None:
        job.promised = promised
        state.promises.add(job)
        return True
    if not decision.keeps_promises:
        if request.promise:
            decision.refuse(job, None, NO_PROMISES)
        return not request.promise
    if too_many := beyond_its_limit(job, state):
        if request.promise:
            decision.refuse(job, None, too_many)
        return not request.promise
    job.room_bytes = state.capability.room_for(job)
    found = state.promises.promise(job)
    if not request.promise:
        return True
    if found.planned is None:
        state.learned.reach.refused += 1
        decision.refuse(job, found.earliest, found.reason)
        return False
    decision.promise(job, state.learned.reach.probability, found.reason)
    return True


def beyond_its_limit(job: Job, state: State) -> str:
    """Why the limit of its owner never allows as many devices as a job needs; empty: it does."""
    shares, request = state.quotas.shares, job.request
    return "" if shares is None else Tree(shares, (request.owner,)).never_within(request.owner, request.total_gpus)


def settle(job: Job, completed: bool, decision: Decision) -> None:
    """A job has ended: learn from it how long such jobs take, and whether what was promised was kept."""
    request, reach = job.request, decision.state.learned.reach
    if request.deadline_at is None or not completed:
        return
    reach.needed(request.deadline_at - max(job.submitted_at, job.not_before), job.done(decision.now))
    if job.promised is not None:
        decision.state.promises.ended(job)
