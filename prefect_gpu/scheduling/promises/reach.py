"""How long a run may take, so that promises are kept as often as is said: learned, and corrected as it goes on."""

from __future__ import annotations

import math

from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.lengths import Lengths, expected_left

LEVEL = 0.9
"""The part of all promises that is to be kept at least; and what is said of the first ones."""

AIM = 0.915
"""What is aimed at, a little more: as many are kept by chance as are broken by it."""

INTERVAL_REACH = 1.645
"""How many deviations above the median the upper end of an estimate's interval lies: nineteen in twenty are below."""

_FIRST_REACH = 1.2816  # nine in ten of a normal distribution are below
_LEAST_REACH, _MOST_REACH = -1.0, 4.0
_STEP = 0.12  # deviations by which the reach moves for each broken promise: a kept one takes back a part of that
_LEAST_SPREAD = 0.02  # of a logarithm: no estimate of a run that was not seen is closer
_UNTOLD_SPREAD = 0.5  # of an estimate that does not say how sure it is, before errors have been seen
_MOST_APART = 1.5  # deviations between an estimate and what others needed of their time; beyond, the estimate is wrong
_LEAST_WINDOWS = 10.0  # runs from which on it counts how much of their time others needed
_FIRST_SAID = 10.0  # promises that count as if they had been kept as is said of the first ones
_MOST_SAID = 0.99  # nothing is promised for sure
_REMEMBERED = 200.0  # runs, after which what was seen before counts half
_UNKNOWN = 3.0  # times as long as is expected of those whose length nobody knows
_OVERRUN = 0.1  # a run that has outlived all that was thought possible goes on for this part of its time


class Reach:
    """Counts how promises ended, and how much of the time up to its deadline each run needed.

    A promise is planned with the time that a run needs at most: so many deviations above the median, the *reach*. It
    grows with each promise that is broken, and shrinks with each that is kept, so that in the long run as many are kept
    as is aimed at, whatever the errors are like (adaptive conformal inference, Gibbs & Candès 2021).

    Attributes:
        kept, broken, refused: How many, since the worker began.
        deviations: The reach.
    """

    def __init__(self) -> None:
        self.kept = self.broken = self.refused = 0
        self.deviations = _FIRST_REACH
        self._windows, self._sum, self._squares = 0.0, 0.0, 0.0
        self._ended, self._in_time = 0.0, 0.0  # promises, those of long ago for less

    @property
    def probability(self) -> float:
        """With which probability the next promise is kept, by how many of the last ones were; in whole per cent."""
        part = (self._in_time + _FIRST_SAID * LEVEL) / (self._ended + _FIRST_SAID)
        return min(_MOST_SAID, round(part, 2))

    def came_true(self, kept: bool) -> None:
        """A promise was kept or broken."""
        self.kept += kept
        self.broken += not kept
        self._move(kept)

    def remembered(self, window_s: float, took_s: float, kept: bool | None) -> None:
        """So ended a run before this worker began: it is learned from, and not counted."""
        self.needed(window_s, took_s)
        if kept is not None:
            self._move(kept)

    def _move(self, kept: bool) -> None:
        fades = 0.5 ** (1.0 / _REMEMBERED)
        self._ended, self._in_time = self._ended * fades + 1.0, self._in_time * fades + kept
        step = -_STEP * (1.0 - AIM) if kept else _STEP * AIM
        self.deviations = min(_MOST_REACH, max(_LEAST_REACH, self.deviations + step))

    def needed(self, window_s: float, took_s: float) -> None:
        """A run that had so many seconds up to its deadline was busy for so many."""
        if window_s <= 0.0 or took_s <= 0.0:
            return
        fades = 0.5 ** (1.0 / _REMEMBERED)
        ratio = math.log(took_s / window_s)
        self._windows = self._windows * fades + 1.0
        self._sum = self._sum * fades + ratio
        self._squares = self._squares * fades + ratio * ratio

    def of_window(self, window_s: float) -> tuple[float, float] | None:
        """(mean, deviation) of the logarithm of the seconds that a run with such a window needs; None: too few seen."""
        if self._windows < _LEAST_WINDOWS or window_s <= 0.0:
            return None
        mean = self._sum / self._windows
        return math.log(window_s) + mean, math.sqrt(max(self._squares / self._windows - mean * mean, _LEAST_SPREAD**2))


def thought(job: Job, lengths: Lengths, reach: Reach) -> tuple[float, float] | None:
    """(mean, deviation) of the logarithm of the seconds of service that a job needs; None: nobody knows.

    Its estimate, and how much of their time up to the deadline others needed, each as sure as it is. Whoever sets a
    deadline knows the job. So an estimate that is far from what follows from it is taken to be less sure than it says:
    no surer than leaves the two 1.5 deviations apart. What a run has shown itself is believed.
    """
    found = []
    by = job.request.deadline_at
    window = None if by is None else reach.of_window(by - max(job.submitted_at, job.not_before))
    service_s, high_s = job.estimate.service_s, job.estimate.service_high_s
    if service_s is not None and service_s > 0.0:
        if high_s is not None:
            spread = math.log(max(high_s / service_s, 1.0)) / INTERVAL_REACH
        else:
            spread = lengths.error or _UNTOLD_SPREAD
        if high_s == service_s:  # it is the truth
            return math.log(service_s), 0.0
        spread = max(spread, _LEAST_SPREAD)
        if window is not None and not job.estimate.measured:
            apart = (math.log(service_s) - window[0]) / _MOST_APART
            spread = max(spread, math.sqrt(max(0.0, apart * apart - window[1] ** 2)))
        found.append((math.log(service_s), spread))
    if window is not None:
        found.append(window)
    if not found:
        return None
    weights = [1.0 / spread**2 for _, spread in found]
    mean = sum(weight * mean for weight, (mean, _) in zip(weights, found, strict=True)) / sum(weights)
    return mean, math.sqrt(1.0 / sum(weights))


def longest_s(job: Job, lengths: Lengths, reach: Reach) -> float | None:
    """Seconds of service that a job needs at most, as far as a promise goes; None: nobody knows."""
    limit_s = job.request.time_limit_s
    known = thought(job, lengths, reach)
    if known is None:
        return limit_s
    mean, spread = known
    longest = math.exp(mean + reach.deviations * spread)
    return longest if limit_s is None else min(longest, limit_s)


def longest_left_s(job: Job, now: float, lengths: Lengths, reach: Reach) -> float:
    """Seconds that a job holds its devices yet, at most: of a waiting one, from its launch on.

    One that has outlived that goes on for a part of what it has had; of one of which nobody knows how long it takes,
    several times as long as is expected.
    """
    longest = longest_s(job, lengths, reach)
    estimate, done_s = job.estimate, job.done(now)
    launching_s = estimate.launching_s + (estimate.checkpoint_s or 0.0)  # others may have to save first
    if job.launched_at is not None and job.active:
        launching_s = 0.0 if job.trains_since is not None else max(0.0, launching_s - now + job.launched_at)
    if longest is None:
        left_s = _UNKNOWN * expected_left(job, now, lengths)[0]
    else:
        left_s = longest - done_s if longest > done_s else _OVERRUN * max(done_s, 1.0)
    return launching_s + left_s + estimate.saving_s
