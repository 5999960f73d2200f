"""The set of jobs that is worth most and fills the devices, chosen afresh at each decision."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from prefect_gpu.papers.muri.attained import AttainedService
from prefect_gpu.papers.muri.knapsack import EMPHASIS, rank
from prefect_gpu.papers.muri.node_packing import Packing, taken_by
from prefect_gpu.papers.muri.seating import Seats, seat
from prefect_gpu.papers.telling import tell_the_rest
from prefect_gpu.scheduling.allocation.base import Action, tell_early
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.jobs import Job

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision

_MOST_JOBS = 20_000


class Filling(Action):
    """Which jobs run together is chosen for all of them at once, not one by one; for a world in which moving is free.

    See :func:`~prefect_gpu.papers.muri.knapsack.rank`. Of a job whose length is unknown, what remains is
    expected from what it has attained and from how long jobs of its size have lasted so far; decisions are then
    reviewed as running jobs outlive what was expected of them.

    Args:
        emphasis: See :func:`~prefect_gpu.papers.muri.knapsack.rank`.
        review_s: Seconds between two decisions that are only reviews, at least.
    """

    def __init__(self, emphasis: float = EMPHASIS, review_s: float = 1800.0) -> None:
        self._emphasis = emphasis
        self._review_s = review_s
        self._learned = AttainedService()
        self._seen: dict[str, Job] = {}

    def act(self, decision: Decision) -> bool:
        """See the class."""
        tell_early(decision)
        self._learn(decision)
        seat(decision, self._choose(decision))
        tell_the_rest(decision)
        self._review(decision)
        return True

    def _learn(self, decision: Decision) -> None:
        """Remember how long the jobs lasted that are gone. (Those withdrawn before they ran say nothing.)"""
        jobs = decision.state.jobs
        if any(id_ not in jobs for id_ in self._seen):
            for job in [job for id_, job in self._seen.items() if id_ not in jobs]:
                del self._seen[job.id]
                if job.attained_s > 0 and job.request.total_gpus:
                    self._learned.finished(job.request.total_gpus, job.attained_s)
        for job in decision.state.running.values():
            if job.estimate.service_s is None:
                self._seen[job.id] = job

    def _choose(self, decision: Decision) -> Seats:
        state = decision.state
        limited = state.draining or state.quotas != Quotas()
        stays = [job for job in state.running.values() if not decision.may_stop(job)]
        jobs = [job for job in state.running.values() if decision.may_stop(job) and job.request.total_gpus]
        chosen: Seats = {}
        walk = state.queue_of_waiting.in_order()
        for line, job in walk:
            if state.limit_on(line.queue) is not None or not state.capability.possible(line.request):
                walk.leave()
            elif not job.request.total_gpus:
                chosen[job] = []
            elif len(jobs) < _MOST_JOBS:
                jobs.append(job)
        jobs.sort(key=lambda job: (state.queue(job.queue).priority, job.submitted_at, job.id))
        packing = Packing([books.node for books in state.numbered], taken_by(stays, decision))
        counts = Counter(job.queue for job in chosen)
        for at in self._ranked(decision, jobs, packing.free):
            if not packing.total:
                break
            job = jobs[at]
            if not job.active and limited and state.limit_on(job.queue, counts) is not None:
                continue
            spots = packing.put(job.request, job.room_bytes)
            if spots is not None:
                chosen[job] = spots
                counts[job.queue] += not job.active
        chosen.update({job: [] for job in stays})
        return chosen

    def _ranked(self, decision: Decision, jobs: list[Job], free: list[int]) -> list[int]:
        """Queue by queue, if these have different priorities; in each, by value."""
        state, now = decision.state, decision.now
        gpus = [job.request.total_gpus for job in jobs]
        remaining_s = [job.remaining_s(now) for job in jobs]
        unknown = [at for at, seconds in enumerate(remaining_s) if seconds is None]
        if unknown:
            attained_s = [jobs[at].attained(now) for at in unknown]
            expected = self._learned.remaining_s([gpus[at] for at in unknown], attained_s)
            for at, seconds in zip(unknown, expected.tolist(), strict=True):
                remaining_s[at] = seconds
        by_priority: dict[int, list[int]] = {}
        for at, job in enumerate(jobs):
            by_priority.setdefault(state.queue(job.queue).priority, []).append(at)
        order: list[int] = []
        for _, members in sorted(by_priority.items()):
            seconds = [remaining_s[at] or 0.0 for at in members]
            order += [members[at] for at in rank([gpus[at] for at in members], seconds, free, emphasis=self._emphasis)]
        return order

    def _review(self, decision: Decision) -> None:
        soonest = math.inf
        for job in decision.state.running.values():
            if job.estimate.service_s is None and decision.may_stop(job):
                attained_s = job.attained(decision.now)
                soonest = min(soonest, self._learned.next_limit_s(attained_s) - attained_s)
        if soonest != math.inf and len(decision.state.queue_of_waiting):
            decision.look_again_at(decision.now + max(soonest, self._review_s))
