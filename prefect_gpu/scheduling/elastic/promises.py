"""Which deadlines can be promised, and how many GPUs does each promise need now? On plain numbers.

Each promise has a plan: how many GPUs it will have when. All plans together never need more GPUs than there are. A new
job is promised its deadline only if a plan for it exists beside theirs.

The numbers below were chosen in the world of ElasticFlow's simulator, on its clusters 1 and 3 with all GPUs and with a
quarter of them (``docs/frontier/elasticflow.md``).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

HAND_S = 15.0
"""Seconds before its deadline by which a promise is planned to end."""
LATE = 0.25
"""Part of the least time between decisions by which a change that is planned for later is expected to be late."""
PAYS_S = 300.0
"""Surplus GPUs must pay for the changes that they cause within so many seconds: then they may be needed elsewhere."""
DEAR, TIGHT = 4.0, 1 / 3
"""A job is too dear if it needs the GPU seconds of 4 · (1 - u)^(1/3) / u usual jobs, u: the part of all GPUs in use."""
SEEN = 500
"""Jobs, the last ones that were submitted, whose mean is usual."""

_ROUNDING_S = 1e-6

Piece = tuple[float, float, int]
"""From when until when so many GPUs."""


@dataclass(frozen=True)
class Due:
    """A job with a deadline, as it is now.

    Attributes:
        work: What is left, in any unit.
        speed: Work per second by number of GPUs, of those that it may have; more GPUs are faster.
        change_s: Seconds that it loses with a start or a change to that number of GPUs.
        gpus: GPUs that it has.
        lost_s: Seconds until it makes progress on them.
    """

    id: str
    work: float
    deadline_s: float
    speed: Mapping[int, float]
    change_s: Mapping[int, float]
    gpus: int = 0
    lost_s: float = 0.0

    def least_gpu_s(self) -> float:
        """GPU seconds on the number of GPUs on which it needs fewest."""
        return min(gpus * self.work / speed for gpus, speed in self.speed.items())


class Profile:
    """How many GPUs are free when: piece by piece, and the last for ever."""

    def __init__(self, gpus: int, now: float = -math.inf) -> None:
        self.times, self.free = [now], [gpus]

    def copy(self) -> Profile:
        """Another one like this."""
        found = Profile(0)
        found.times, found.free = self.times[:], self.free[:]
        return found

    def take(self, pieces: Iterable[Piece], sign: int = 1) -> None:
        """These GPUs are no longer free; with sign -1, they are again."""
        for start, end, gpus in pieces:
            if end > start:
                first = self._cut(start)
                for at in range(first, self._cut(end)):
                    self.free[at] -= sign * gpus

    def forget(self, now: float) -> None:
        """What was before now, and borders where nothing changes."""
        first = bisect_right(self.times, now) - 1
        times, free = [now], [self.free[first]]
        for at in range(first + 1, len(self.times)):
            if self.free[at] != free[-1]:
                times.append(self.times[at])
                free.append(self.free[at])
        self.times, self.free = times, free

    def used(self, gpus: int, start: float, end: float) -> float:
        """Part of so many GPUs that is not free from one moment to another."""
        free = 0.0
        for at in range(max(bisect_right(self.times, start) - 1, 0), len(self.times)):
            if self.times[at] >= end:
                break
            until = self.times[at + 1] if at + 1 < len(self.times) else end
            free += self.free[at] * (min(until, end) - max(self.times[at], start))
        return 1.0 - free / (gpus * (end - start)) if end > start else 1.0

    def _cut(self, at: float) -> int:
        number = bisect_left(self.times, at)
        if number == len(self.times) or self.times[number] != at:
            self.times.insert(number, at)
            self.free.insert(number, self.free[number - 1])
        return number


def plan(job: Due, profile: Profile, now: float, by_s: float, hold_s: float = 0.0) -> list[Piece] | None:
    """The smallest number of GPUs with which a job is done in time, and when it has how many of them.

    Where fewer than that are free, it has the most that are.

    Args:
        profile: What is free; from now on.
        by_s: When it should be done.
        hold_s: Seconds from now on in which nothing can change. Later changes are expected to be late by a part of it.
    """
    sizes = sorted(job.speed)
    if now + job.work / job.speed[sizes[-1]] > by_s:
        return None
    for most in range(len(sizes)):
        if now + job.work / job.speed[sizes[most]] <= by_s:
            found = _fill(job, sizes[: most + 1], profile, now, by_s, hold_s)
            if found is not None:
                return found
    return None


def _fill(
    job: Due, sizes: Sequence[int], profile: Profile, now: float, by_s: float, hold_s: float
) -> list[Piece] | None:
    most, fastest = sizes[-1], job.speed[sizes[-1]]
    work, gpus, lost_s = job.work, job.gpus, job.lost_s
    speed = job.speed.get(gpus, 0.0)
    pieces: list[Piece] = []
    begun = now
    for start, end, there in _free(profile, now, now + hold_s):
        if start + work / fastest > by_s:
            return None
        may = most if there >= most else sizes[number - 1] if (number := bisect_right(sizes, there)) else 0
        if may != gpus:
            lasts_s = min(end, by_s) - start
            if may and lasts_s == math.inf:
                lasts_s = job.change_s[may] + work / job.speed[may]
            if gpus > may or (lasts_s - job.change_s[may]) * job.speed[may] > (lasts_s - lost_s) * speed:
                if gpus:
                    pieces.append((begun, start, gpus))
                begun, gpus = start, may
                speed, lost_s = (job.speed[gpus], job.change_s[gpus]) if gpus else (0.0, 0.0)
                if start > now:
                    lost_s += LATE * hold_s
        if not gpus:
            continue
        done_s = start + lost_s + work / speed
        if done_s <= end:
            if done_s > by_s:
                return None
            pieces.append((begun, done_s, gpus))
            return [piece for piece in pieces if piece[1] > piece[0]]
        lasts_s = end - start
        work -= max(lasts_s - lost_s, 0.0) * speed
        lost_s = max(lost_s - lasts_s, 0.0)
    return None


def _free(profile: Profile, now: float, held_until: float) -> Iterator[Piece]:
    """What is free from now on; in the seconds in which nothing can change, the fewest that are."""
    times, free = profile.times, profile.free
    first, held = bisect_right(times, now) - 1, bisect_left(times, held_until)
    at = max(first, held - 1)
    fewest = min(free[first : at + 1])
    end = times[at + 1] if at + 1 < len(times) else math.inf
    if free[at] == fewest:
        yield now, end, fewest
    else:
        yield now, held_until, fewest
        if held_until < end:
            yield held_until, end, free[at]
    for later in range(at + 1, len(times)):
        yield times[later], times[later + 1] if later + 1 < len(times) else math.inf, free[later]


def _gpu_s(pieces: Iterable[Piece]) -> float:
    return sum(gpus * (end - start) for start, end, gpus in pieces)


def _between(job: Due) -> tuple[float, str]:
    """Between the order of deadlines and that of the latest starts on the fewest GPUs."""
    return job.deadline_s - 0.5 * job.work / job.speed[min(job.speed)], job.id


_ORDERS = (attrgetter("deadline_s", "id"), _between)


class Promises:
    """The plans of all jobs whose deadlines were promised.

    Args:
        gpus: GPUs that there are.
        hand_s: Seconds before its deadline by which a promise is planned to end.
        hold_s: Seconds that pass at least between two decisions: so long, GPUs stay with whom they were given.
    """

    def __init__(self, gpus: int, *, hand_s: float = HAND_S, hold_s: float = 0.0) -> None:
        self.gpus, self.hand_s, self.hold_s = gpus, hand_s, hold_s
        self.plans: dict[str, list[Piece]] = {}
        self.profile = Profile(gpus)
        self.now = -math.inf
        self._jobs: dict[str, Due] = {}
        self._seen: deque[float] = deque(maxlen=SEEN)

    def update(self, now: float, jobs: Iterable[Due]) -> None:
        """What is left of the jobs that were promised, now; those that are left out have ended.

        Plans of jobs that are ahead of them become shorter. A job that is behind gets another plan, if need be all do;
        where there is none that is in time, one that is late. All are planned anew, too, where that needs fewer GPU
        seconds: a plan made while many GPUs were taken may have more of them, later, than it needs.
        """
        self.now = now
        self._jobs = {job.id: job for job in jobs}
        for name in self.plans.keys() - self._jobs.keys():
            self.profile.take(self.plans.pop(name), -1)
        behind = [job for job in sorted(self._jobs.values(), key=attrgetter("deadline_s", "id")) if self._trim(job)]
        self.profile.forget(now)
        for job in behind:
            self._mend(job)
        anew = self._anew([*self._jobs.values()])
        if anew is not None and sum(map(_gpu_s, anew[0].values())) < sum(map(_gpu_s, self.plans.values())):
            self.plans, self.profile = anew

    def admit(self, jobs: Iterable[Due]) -> list[str]:
        """Promise as many new jobs as can be kept, those with least work first; the others are refused.

        A job's plan goes beside those of the others; if there is none, all are planned anew. A job that is dear while
        GPUs are scarce is refused although a plan exists, for the sake of several others. A refusal changes no plan.

        Returns:
            The ids of the refused.
        """
        refused = []
        jobs = list(jobs)
        self._seen.extend(job.least_gpu_s() for job in jobs)
        for job in sorted(jobs, key=lambda job: (job.least_gpu_s(), job.deadline_s, job.id)):
            if not self._promise(job):
                refused.append(job.id)
        return refused

    def sizes(self) -> dict[str, int]:
        """How many GPUs each job has now: what its promise needs, and what is left where it saves most.

        What is left goes to whom it costs the least GPU time, step by step.
        """
        found = {name: self._planned(name) for name in self.plans}
        left = self.gpus - sum(found.values())
        steps = [step for name in self.plans for step in [self._step(name, found[name], left)] if step]
        heapq.heapify(steps)
        while steps and left > 0:
            _, name, more = heapq.heappop(steps)
            if more - found[name] <= left:
                left -= more - found[name]
                found[name] = more
            step = self._step(name, found[name], left)
            if step:
                heapq.heappush(steps, step)
        return {name: gpus for name, gpus in found.items() if gpus}

    def next_change_s(self) -> float:
        """When the next plan changes."""
        return min(
            (at for pieces in self.plans.values() for piece in pieces for at in piece[:2] if at > self.now),
            default=math.inf,
        )

    # -- plans ----------------------------------------------------------------------------------------------------

    def _trim(self, job: Due) -> bool:
        """Cut off what the job's plan no longer needs; whether it is not enough."""
        work, gpus, lost_s, pieces = job.work, job.gpus, job.lost_s, self.plans[job.id]
        kept: list[Piece] = []
        for start, end, size in pieces:
            if end <= self.now:
                continue
            start = max(start, self.now + self.hold_s) if start > self.now else self.now
            if size != gpus:
                gpus, lost_s = size, job.change_s[size]
            done_s = start + lost_s + work / job.speed[size]
            if done_s <= end + _ROUNDING_S:
                kept.append((start, min(done_s, end), size))
                work = 0.0
                break
            if end <= start:
                continue
            kept.append((start, end, size))
            work -= max(end - start - lost_s, 0.0) * job.speed[size]
            lost_s = max(lost_s - (end - start), 0.0)
        if kept != pieces:
            self.profile.take(pieces, -1)
            self.profile.take(kept)
            self.plans[job.id] = kept
        return work > 0.0 or not kept or kept[-1][1] > job.deadline_s - self.hand_s / 2

    def _mend(self, job: Due) -> None:
        self.profile.take(self.plans[job.id], -1)
        for by_s in (job.deadline_s - self.hand_s, job.deadline_s):
            found = plan(job, self.profile, self.now, by_s, self.hold_s)
            if found is not None:
                break
        else:
            anew = self._anew([*self._jobs.values()])
            if anew is not None:
                self.plans, self.profile = anew
                return
            found = plan(job, self.profile, self.now, math.inf, self.hold_s) or []
        self.profile.take(found)
        self.plans[job.id] = found

    def _too_dear(self, job: Due, gpu_s: float) -> bool:
        used = self.profile.used(self.gpus, self.now, job.deadline_s)
        usual_s = sum(self._seen) / len(self._seen)
        return gpu_s * used > DEAR * max(1.0 - used, 0.0) ** TIGHT * usual_s

    def _promise(self, job: Due) -> bool:
        by_s = job.deadline_s - self.hand_s
        found = plan(job, self.profile, self.now, by_s, self.hold_s)
        if found is not None:
            if self._too_dear(job, _gpu_s(found)):
                return False
            self.profile.take(found)
            self.plans[job.id] = found
        else:
            if self.now + job.work / max(job.speed.values()) > by_s or self._too_dear(job, job.least_gpu_s()):
                return False
            anew = self._anew([*self._jobs.values(), job])
            if anew is None or self._too_dear(job, _gpu_s(anew[0][job.id])):
                return False
            self.plans, self.profile = anew
        self._jobs[job.id] = job
        return True

    def _anew(self, jobs: Sequence[Due]) -> tuple[dict[str, list[Piece]], Profile] | None:
        """Plans for all, in the better of two orders; None if a job would be late that need not be."""
        found = [one for order in _ORDERS for one in [self._in_order(sorted(jobs, key=order))] if one]
        return min(found, key=lambda one: sum(map(_gpu_s, one[0].values())), default=None)

    def _in_order(self, jobs: Iterable[Due]) -> tuple[dict[str, list[Piece]], Profile] | None:
        profile, plans, late = Profile(self.gpus, self.now), dict[str, list[Piece]](), list[Due]()
        for job in jobs:
            by_s = job.deadline_s - self.hand_s
            if self.now + job.work / max(job.speed.values()) > job.deadline_s:
                late.append(job)
                continue
            found = plan(job, profile, self.now, by_s, self.hold_s)
            if found is None:
                return None
            profile.take(found)
            plans[job.id] = found
        for job in late:
            plans[job.id] = plan(job, profile, self.now, math.inf, self.hold_s) or []
            profile.take(plans[job.id])
        return plans, profile

    # -- what is left ---------------------------------------------------------------------------------------------

    def _planned(self, name: str) -> int:
        return next((size for start, end, size in self.plans[name] if start <= self.now < end), 0)

    def _step(self, name: str, gpus: int, left: int) -> tuple[float, str, int] | None:
        """The next number of GPUs that saves time: (GPU seconds more, job, GPUs)."""
        job = self._jobs[name]
        for more in sorted(job.speed):
            if more > gpus and more - gpus <= left:
                lost_s = job.lost_s if more == job.gpus else job.change_s[more]
                left_s = lost_s + job.work / job.speed[more]
                if not gpus:
                    return more * left_s - job.least_gpu_s(), name, more
                was_lost_s = job.lost_s if gpus == job.gpus else job.change_s[gpus]
                if (PAYS_S - lost_s) * job.speed[more] > (PAYS_S - was_lost_s) * job.speed[gpus]:
                    return more * left_s - gpus * (was_lost_s + job.work / job.speed[gpus]), name, more
        return None
