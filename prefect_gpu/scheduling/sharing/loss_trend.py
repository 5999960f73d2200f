"""How much a run still learns, whatever it reports: SpeCon's growth (§V-A), free of scale, direction and noise."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque

_WINDOW = 6  # latest intervals that the slope is taken over
_LEAST = 3  # intervals before there is a growth
_HUGE = 1e300  # of two values beyond this, not even the difference is a number
_TO_STD = 1.4826  # of a median absolute deviation, for normal noise


class LossTrend:
    """Growth of one run: its change per interval, as a fraction of all its change so far.

    E is the median of what was reported in an interval. Over the latest six E a line is laid robustly (its slope is the
    median of the slopes between any two, Theil and Sen). G = max(0, |slope| − its standard error) ÷ (largest − smallest
    value of the lines' ends so far), between 0 and 1. The printed G = |E(t_m) − E(t_{m−1})| is this for a window of
    two, without the noise, of values between 0 and 1.

    Losses, accuracies, rewards, in any unit: of a·E + b, for any a ≠ 0 and b, the growth is the same. A value that
    only jitters hardly grows, a constant one not at all.

    It differs from :class:`~prefect_gpu.scheduling.sharing.convergence.GrowthWatch`, which divides by a range too, but
    takes a tenth of the magnitude at least: that depends on b, and every jump between two intervals counts.

    Args:
        interval_s: Seconds of an interval (30 in the paper). Intervals without a report are waited out, so a run that
            reports once an epoch is looked at once an epoch.
        errors: How many standard errors a slope must have before it counts: with 1 noise looks like growth now and
            then, with more small growth is overlooked.

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
