"""Does a run's loss still move? SpeCon's categories (Algorithm 1) for real losses: noisy, and of any scale."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque

from prefect_gpu.scheduling.sharing.convergence import ALPHA, INTERVAL_S, Category

SHORTEST_INTERVAL_S = 1.0
_OF_TRAINING = 20  # intervals in the expected training time
_CLEAR = 3  # intervals that do where there is hardly any noise
_ERRORS = 2.0  # of its slope's standard error, beyond which a run is taken to learn
_SLOW_START = 10  # intervals for which a run that has never learned anything is waited for
_LEARNED = 6.0  # by so many times its noise a loss must have moved to be one that has learned
_RETURN = 5.0  # times alpha: how far, of all that it has moved, a loss that stood still must move to count again
_BEYOND_NOISE = 4.0
_CONFIRMED = 3  # looks at which a run was still converged
_LATEST = 3  # reports whose median is compared: one that is off is no news
_KEPT = 512
_WINDOW = 6  # latest intervals that the slope is taken over
_LEAST = 3  # intervals before there is a growth
_HUGE = 1e300  # of two values beyond this, not even the difference is a number
_TO_STD = 1.4826  # of a median absolute deviation, for normal noise


class LossTrend:
    """Growth of one run: its change per interval, as a fraction of all its change so far.

    E is the median of what was reported in an interval. Over the latest six E a line is laid robustly (its slope is the
    median of the slopes between any two, Theil and Sen). G = max(0, |slope| − its standard error) ÷ (largest − smallest
    value of the lines' ends so far), between 0 and 1. Of a·E + b, for any a ≠ 0 and b, the growth is the same. A value
    that only jitters hardly grows, a constant one not at all.

    Args:
        interval_s: Seconds of an interval (30 in the paper). Intervals without a report are waited out, so a run that
            reports once an epoch is looked at once an epoch.
        errors: How many standard errors a slope must have before it counts: with more, small growth is overlooked.

    Attributes:
        level: Where the line ends now, without the noise; None before three intervals.
        noise: Standard deviation of an interval's value about the line.
        covered: The range of the lines' ends so far: what the run has learned.
    """

    def __init__(self, interval_s: float = 30.0, *, errors: float = 1.0) -> None:
        if not 0 < interval_s < math.inf:
            raise ValueError(f"interval_s is {interval_s}: give seconds above 0, such as 30")
        self.interval_s = interval_s
        self._errors = errors
        self.level: float | None = None
        self.noise = 0.0
        self.covered = 0.0
        self._reported: list[float] = []
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self._low = math.inf
        self._high = -math.inf
        self._began_at: float | None = None
        self._last_at = -math.inf

    def observe(self, at: float, value: float) -> float | None:
        """Take a reported value; one that is not finite (or beyond 1e300), or older than the last one, changes nothing.

        Args:
            at: Seconds on any one clock.
            value: Loss, accuracy or whatever else it improves.

        Returns:
            The growth, if this report ends an interval and there were enough; else None.
        """
        if not (abs(value) <= _HUGE and self._last_at <= at < math.inf):
            return None
        self._last_at = at
        ended = None
        if self._began_at is None:
            self._began_at = at
        elif at >= self._began_at + self.interval_s:
            ended = self._close()
            self._began_at += self.interval_s * math.floor((at - self._began_at) / self.interval_s)
        self._reported.append(value)
        return ended

    def slope_over(self, intervals: int) -> float:
        """The robust slope of the latest few intervals alone, per interval; there must be two at least."""
        return _slope(list(enumerate(self._values))[-intervals:])

    def _close(self) -> float | None:
        self._values.append(statistics.median(self._reported))
        self._reported.clear()
        if len(self._values) < _LEAST:
            return None
        values = list(self._values)
        numbered = list(enumerate(values))
        slope = _slope(numbered)
        level = statistics.median(value - slope * at for at, value in numbered)
        end = level + slope * (len(values) - 1)
        self._low, self._high = min(self._low, level, end), max(self._high, level, end)
        covered = self._high - self._low
        self.level, self.covered = end, covered
        off = statistics.median(abs(value - level - slope * at) for at, value in numbered)
        self.noise = _TO_STD * off
        error = self._errors * self.noise * math.sqrt(12.0 / (len(values) ** 3 - len(values)))
        return min(1.0, max(0.0, abs(slope) - error) / covered) if covered > 0 else 0.0


def _slope(numbered: list[tuple[int, float]]) -> float:
    return statistics.median((b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(numbered, 2))


def interval_of(expected_s: float | None) -> float:
    """Seconds between two looks at a run's loss: a twentieth of its training, but 1 s at least and 30 s at most.

    The paper's 30 s are for trainings of several minutes.

    Args:
        expected_s: Seconds that the run is expected to train; None: unknown, and 30 s it is.
    """
    if expected_s is None:
        return INTERVAL_S
    return min(INTERVAL_S, max(SHORTEST_INTERVAL_S, expected_s / _OF_TRAINING))


class Plateau:
    """Whether one run still learns, from the losses that it reports.

    It is Algorithm 1 with another growth, :class:`.LossTrend`, of which two standard errors are taken off. What
    :class:`.GrowthWatch` compares, one interval with the next, is mostly noise where losses are those of batches, and a
    tenth of a loss's magnitude hides what it learns when it ends far from zero.

    - The line is laid over six intervals, for the sake of noise. Three do as well if the noise of one report is less
      than α of all that the loss ever moved: so a clear standstill is seen sooner.
    - G ≤ α steps down: progressing, watched, converged. (Jitter is gone from G already: it need not fall.)
    - G > α: progressing again. So is a converged run at once, without the end of an interval, when the median of its
      last three losses has left the place where it stood still by 5 α of all that it ever moved, and by four times its
      noise. That holds for a run that was slowed down meanwhile as well, whose growth per second is small.
    - A run that has never learned anything may only be slow to start: it is converged after ten intervals, not two, and
      never confirmed.

    Attributes:
        category: The run's category now.
        learned: Whether its loss has ever moved by more than its noise.
        confirmed: Whether it has learned, then converged, and stayed so at three more looks.
    """

    def __init__(self) -> None:
        self.category = Category.PROGRESSING
        self.learned = False
        self.confirmed = False
        self._growth = LossTrend(errors=_ERRORS)
        self._reports: list[tuple[float, float]] = []
        self._first: float | None = None
        self._recent: deque[float] = deque(maxlen=24)
        self._still = 0  # looks at which it stood still, one after the other
        self._stands_at: tuple[float, float] | None = None  # where it converged, and how far is away from there

    def observe(self, at: float, value: float, interval_s: float = INTERVAL_S) -> Category:
        """Take a reported loss.

        Args:
            at: Seconds on any one clock; a report that is not newer than the last one changes nothing.
            value: Of any scale; one that is not finite changes nothing.
            interval_s: Seconds between two looks, as :func:`interval_of` says now. It may change.
        """
        if not math.isfinite(value) or (self._reports and at <= self._reports[-1][0]):
            return self.category
        if not 0.5 < interval_s / self._growth.interval_s < 2.0:
            self._look_anew(interval_s)
        self._first = value if self._first is None else self._first
        self._recent.append(value)
        self._reports.append((at, value))
        if len(self._reports) > _KEPT:
            self._reports = self._reports[::2]
        growth = self._growth.observe(at, value)
        if growth is not None:
            self._look(growth)
        if self._has_left():
            self._progress()
        return self.category

    def _look_anew(self, interval_s: float) -> None:
        """More is known of how long the run will take: what it reported, in other intervals."""
        self._growth = LossTrend(interval_s, errors=_ERRORS)
        for report in self._reports:
            self._growth.observe(*report)

    def _look(self, growth: float) -> None:
        moved, noise = self._moved()
        noise = max(noise, self._jitter())
        self.learned = self.learned or moved > _LEARNED * noise
        if moved > 0.0 and self._jitter(latest=12) < ALPHA * moved:
            growth = min(growth, abs(self._growth.slope_over(_CLEAR)) / moved)
        # What has not learned anything has no range to measure growth by.
        if growth > ALPHA and self.learned:
            self._progress()
            return
        self._still += 1
        if self._still < (1 if self.learned else _SLOW_START):
            return
        if self.category is Category.PROGRESSING:
            self.category = Category.WATCHING
        elif self.category is Category.WATCHING:
            self.category = Category.CONVERGED
            assert self._growth.level is not None
            away = max(_RETURN * ALPHA * moved, _BEYOND_NOISE * noise)
            self._stands_at, self._still = (self._growth.level, away), 0
        else:
            self.confirmed = self.confirmed or (self.learned and self._still >= _CONFIRMED)

    def _moved(self) -> tuple[float, float]:
        """How far the loss has come since the run began, and the noise about the line."""
        level, first = self._growth.level, self._first
        since_first = abs(level - first) if level is not None and first is not None else 0.0
        return max(self._growth.covered, since_first), self._growth.noise

    def _jitter(self, latest: int = 24) -> float:
        """Standard deviation of one report, from the differences of neighbours: free of any trend."""
        steps = [abs(b - a) for a, b in itertools.pairwise(list(self._recent)[-latest:])]
        return _TO_STD * statistics.median(steps) / math.sqrt(2.0) if steps else 0.0

    def _has_left(self) -> bool:
        if self._stands_at is None or len(self._recent) < _LATEST:
            return False
        level, away = self._stands_at
        return abs(statistics.median(list(self._recent)[-_LATEST:]) - level) > away

    def _progress(self) -> None:
        self.category, self.confirmed, self._still, self._stands_at = Category.PROGRESSING, False, 0, None
