"""All promises, each with a plan: which devices its run has from when on, at the latest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.promises.gantt import Gantt, Planned
from prefect_gpu.scheduling.promises.reach import longest_s
from prefect_gpu.scheduling.promises.taken import Facts, left_s, needs, stays, taken

MARGIN_S = 2.0
"""Seconds before its deadline by which a promise is planned to end: for what happens between two decisions."""

_TRIES = 40  # to find the earliest date: the longer the time up to it, the longer the run may take


@dataclass(frozen=True)
class Answer:
    """What is said to a job with a deadline.

    Attributes:
        planned: The devices that it gets at the latest; None: the deadline cannot be promised.
        earliest: The earliest date that could be promised instead; None: none can.
        reason: In words.
    """

    planned: Planned | None
    earliest: float | None
    reason: str


class Book:
    """The promises of one scheduler.

    Each job that waits for its promise has a plan that starts as late as it may: until then it is a job like any other,
    and may start earlier. All plans, those that run on promises, and those that nobody can stop never need more devices
    than there are, as far as is known. A new promise is made only if that stays so.

    Attributes:
        jobs: Those with a deadline that is promised, or that was found possible when they came (best effort).
        plans: By job, of those that wait.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self.jobs: dict[str, Job] = {}
        self.plans: dict[str, Planned] = {}
        self._made: tuple[float, Gantt] | None = None
        self._at_risk: set[str] = set()
        self._broken: set[str] = set()

    def stale(self) -> None:
        """Something has changed that plans depend on."""
        self._made = None

    def protects(self, job: Job) -> bool:
        """Whether a job is not to be stopped for others."""
        return job.id in self.jobs

    # -- answers ----------------------------------------------------------------------------------------------------

    def ask(self, job: Job) -> Answer:
        """Whether a deadline can be promised beside all that was promised before. It changes nothing."""
        by = job.request.deadline_at
        assert by is not None
        unknown = self._impossible(job)
        if unknown:
            return Answer(None, None, unknown)
        found = self._with(job, by)
        if found is not None:
            planned = found[job.id]
            lasts = planned.end - planned.start
            return Answer(planned, None, f"it needs {_words(lasts)} at most, and has its devices in time for that")
        earliest = self._earliest(job)
        lasts = left_s(job, self._facts)
        why = f"it may need {_words(lasts)}, and its devices are promised to others or taken until it is too late"
        if self._facts.now + lasts > by - MARGIN_S:
            why = f"it may need {_words(lasts)}, and its deadline is sooner than that"
        return Answer(None, earliest, why)

    def promise(self, job: Job) -> Answer:
        """The same, and enter it if it can be kept."""
        answer = self.ask(job)
        if answer.planned is not None and job.request.deadline_at is not None:
            found = self._with(job, job.request.deadline_at)
            assert found is not None
            self.jobs[job.id] = job
            for name in self.plans.keys() - found.keys():  # best effort was displaced
                self.jobs.pop(name, None)
            self.plans = found
            self.stale()
        return answer

    def add(self, job: Job) -> None:
        """A promise that was made before: by an earlier worker, say. It gets the best plan that there is."""
        self.jobs[job.id] = job
        self.stale()

    def changed(self, job: Job) -> None:
        """A job that waits asks for something else: its plan is made anew, and without a deadline it has none."""
        if job.request.deadline_at is None:
            self._let_go(job)
        elif job.id in self.jobs:
            self.plans.pop(job.id, None)
            self._at_risk.discard(job.id)
            self.stale()

    def remove(self, job: Job) -> None:
        """A job is over."""
        self._broken.discard(job.id)
        self._let_go(job)

    def _let_go(self, job: Job) -> None:
        """A job has no promise any more."""
        if self.jobs.pop(job.id, None) is not None:
            self.plans.pop(job.id, None)
            self._at_risk.discard(job.id)
            self.stale()

    def ended(self, job: Job) -> None:
        """A run that was promised its deadline has completed."""
        if job.id not in self._broken:
            self._facts.learned.reach.came_true(self._facts.now <= (job.request.deadline_at or 0.0))

    def _impossible(self, job: Job) -> str:
        facts = self._facts
        if longest_s(job, facts.learned.lengths, facts.learned.reach) is None:
            return (
                "nobody knows yet how long such a run takes. Let one end first, or say how long it may take at most "
                "with time_limit"
            )
        if not facts.capability.possible(job.request) or needs(job, self._facts) is None:
            return "no node of this worker can ever hold it"
        return ""

    def _with(self, job: Job, by: float) -> dict[str, Planned] | None:
        """All plans with one more; None if there are none that are all in time."""
        gantt, asked = self._gantt(), needs(job, self._facts)
        assert asked is not None
        planned = gantt.latest(asked, by - MARGIN_S)
        if planned is not None:
            return {**self.plans, job.id: planned}
        waiting = [self.jobs[name] for name in self.plans]
        for others in (waiting, [one for one in waiting if one.promised is not None]):
            found = self._anew([*others, job])
            if found is not None:
                return found
        return None

    def _anew(self, jobs: list[Job]) -> dict[str, Planned] | None:
        """Plans for all of these, the latest deadline first; None if one of them has none, unless it is late anyway."""
        gantt, found = taken(self._facts, self.jobs), dict[str, Planned]()
        for job in sorted(jobs, key=lambda job: (-(job.request.deadline_at or 0.0), job.id)):
            asked = needs(job, self._facts)
            planned = None if asked is None else gantt.latest(asked, (job.request.deadline_at or 0.0) - MARGIN_S)
            if planned is None and job.id in self._at_risk and asked is not None:
                planned = gantt.earliest(asked)
            if planned is None:
                return None
            gantt.take(planned)
            found[job.id] = planned
        return found

    def _earliest(self, job: Job) -> float | None:
        """The earliest deadline that would be promised now, beside the plans as they are.

        The longer the time up to a deadline, the longer a run may take that asks for it, where nothing else is known.
        """
        now, by, request = self._facts.now, job.request.deadline_at or 0.0, job.request
        gantt = self._gantt()
        try:
            for _ in range(_TRIES):
                job.request = replace(request, deadline_at=by)
                asked = needs(job, self._facts)
                planned = None if asked is None else gantt.earliest(asked)
                if planned is None:
                    return None
                ends = planned.end + MARGIN_S
                if ends <= by:
                    return by
                by = max(ends, by + 0.02 * (by - now))
            return None
        finally:
            job.request = request

    # -- plans ------------------------------------------------------------------------------------------------------

    def refresh(self) -> list[tuple[Job, str]]:
        """Bring all plans up to date. Returns who cannot be in time any more, as far as is known, each once."""
        facts, news = self._facts, list[tuple[Job, str]]()
        for name in [name for name in self.jobs if name not in facts.jobs]:
            self.remove(self.jobs[name])
        for job in [job for job in self.jobs.values() if facts.now > (job.request.deadline_at or math.inf)]:
            # It is too late: from now on, it is not to keep others from being in time.
            if job.promised is not None:
                self._broken.add(job.id)
                facts.learned.reach.came_true(False)
                if job.id not in self._at_risk:
                    news.append((job, "its deadline has passed"))
            self._let_go(job)
        for name in [name for name in self.plans if self.jobs[name].active]:
            del self.plans[name]
        self.stale()
        gantt = self._gantt()
        missing = [job for name, job in self.jobs.items() if not job.active and name not in self.plans]
        crowded = set(gantt.overfull())
        behind = [
            name
            for name, one in self.plans.items()
            if crowded & one.devices.keys() or not gantt.has(one) or one.start < facts.now - MARGIN_S
        ]
        for name in behind:
            del self.plans[name]
        if missing or behind:
            self._plan_again([*missing, *(self.jobs[name] for name in behind)], news)
        for job in self.jobs.values():
            by = job.request.deadline_at or math.inf
            if job.active and job.id not in self._at_risk and facts.now + left_s(job, self._facts) > by:
                self._risk(job, "it takes longer than was thought", news)
        return news

    def _plan_again(self, jobs: list[Job], news: list[tuple[Job, str]]) -> None:
        gantt = taken(self._facts, self.jobs)
        for planned in self.plans.values():
            gantt.take(planned)
        late: list[Job] = []
        for job in sorted(jobs, key=lambda job: (-(job.request.deadline_at or 0.0), job.id)):
            asked = needs(job, self._facts)
            last = None if asked is None else gantt.latest(asked, (job.request.deadline_at or 0.0) - MARGIN_S)
            if last is None:
                late.append(job)
            else:
                gantt.take(last)
                self.plans[job.id] = last
        if late:
            anew = self._anew([*(self.jobs[name] for name in self.plans), *late])
            if anew is not None:
                self.plans = anew
                late = []
        for job in late:
            asked = needs(job, self._facts)
            first = None if asked is None else gantt.earliest(asked)
            if first is not None:
                gantt.take(first)
                self.plans[job.id] = first
            if job.id not in self._at_risk:
                self._risk(job, "others take longer than was thought, or there are fewer devices", news)
        self.stale()

    def _risk(self, job: Job, why: str, news: list[tuple[Job, str]]) -> None:
        self._at_risk.add(job.id)
        if job.promised is not None:
            news.append((job, why))

    def due(self) -> list[Job]:
        """Jobs that must start now, in the order of their deadlines."""
        now = self._facts.now
        found = [self.jobs[name] for name, one in self.plans.items() if one.start <= now]
        ready = [job for job in found if job.status is Status.WAITING and job.due_at <= now]
        return sorted(ready, key=lambda job: (job.request.deadline_at or 0.0, job.id))

    def next_start(self) -> float | None:
        """When the next plan starts."""
        return min((one.start for one in self.plans.values() if one.start > self._facts.now), default=None)

    def leaves_room(self, job: Job, group: str) -> bool:
        """Whether plans can be kept if a job starts now on a group: it may be stopped, or it is gone in time."""
        if not self.jobs or not job.request.total_gpus or not stays(job, self._facts, self.jobs):
            return True
        gantt, request, own = self._gantt(), job.request, self.plans.get(job.id)
        wanted = min(request.total_gpus, gantt.size(group))
        if own is not None:
            gantt.take(own, -1)
            # Only so many devices need be of this group as are planned of it: for the others there is room elsewhere.
            wanted = min(wanted, own.devices.get(group, wanted))
        now = self._facts.now
        least = gantt.least(group, now, now + left_s(job, self._facts))
        if own is not None:
            gantt.take(own)
        return least >= wanted

    def leaves_room_with(self, job: Job, others: Sequence[Job], group: str, devices: int = 1, *, behind: bool) -> bool:
        """The same on devices that others are on now: they are taken until the last of all of them is gone.

        Args:
            others: They are on each of the devices.
            group: That these are of.
            devices: How many they are.
            behind: Whether the job begins when the others have ended; else it shares the devices with them.
        """
        facts = self._facts
        if not self.jobs or not stays(job, facts, self.jobs):
            return True
        ends = {one.id: facts.now + left_s(one, facts) for one in others}
        firm = [ends[one.id] for one in others if stays(one, facts, self.jobs)]
        taken_until = max(firm, default=facts.now)  # whoever may be stopped is in no promise's way
        end = (max(ends.values(), default=facts.now) if behind else facts.now) + left_s(job, facts)
        if end <= taken_until:
            return True
        gantt, own = self._gantt(), self.plans.get(job.id)
        if own is not None:
            gantt.take(own, -1)
        least = gantt.least(group, taken_until, end)
        if own is not None:
            gantt.take(own)
        return least >= devices

    def _gantt(self) -> Gantt:
        now = self._facts.now
        if self._made is None or self._made[0] != now:
            gantt = taken(self._facts, self.jobs)
            for name, planned in self.plans.items():
                if not self.jobs[name].active:  # else it has just started, and has its devices
                    gantt.take(planned)
            self._made = now, gantt
        return self._made[1]


def _words(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    if seconds < 7200.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"
