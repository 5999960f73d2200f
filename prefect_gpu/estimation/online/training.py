"""While a run trains, what is measured replaces what was estimated before: its steps, its memory, its use of devices.

The time of a step is followed as a logarithm. What was estimated counts as one measurement with its own uncertainty;
the steps so far count the more, the more there are of them. The very first steps are slow (compilers, caches): as soon
as there are others they are left out. How a program's pace goes on after its first steps is learned from its earlier
runs (:mod:`~prefect_gpu.estimation.online.pace`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from prefect_gpu.estimation.runs import MARKS, STEP_S, TRAINING_S, Interval, RunEstimate

_WARM_UP = 0.01  # part of all steps, at least one, that are left out once there are others
_LASTING = 0.03  # how evenly a training goes on: its later steps differ from its first ones by about this much
_UNEVEN = 0.5  # scatter of single steps before there are enough to tell
_RECENT = 0.25  # part of the reports that is compared with those before, to notice that the pace has changed
_CHANGED = math.log(1.25)
_MOST_POINTS = 256
_MOST_STEPS = 10**15  # whoever says more has made a mistake; more cannot be multiplied by seconds at some point
_DRIFTED = 2.0  # widths of the estimate's interval from which on the program is said to differ from its earlier runs


@dataclass(frozen=True)
class Outlook:
    """What is expected of a training that is under way.

    Attributes:
        remaining_s: Seconds until its last step.
        total_s: Seconds of the whole training.
        step_s: Seconds per step from here on.
    """

    remaining_s: Interval
    total_s: Interval
    step_s: Interval


class Training:
    """Follows one training from its first step on.

    Args:
        prior: What was estimated before it began.
        steps: Steps that it has; None: unknown.
        began_at: When training began, in seconds on any clock.
        first_step: Steps that were done before, in a run that carries on from a checkpoint.
    """

    def __init__(self, prior: RunEstimate, steps: int | None, began_at: float, first_step: int = 0) -> None:
        self.steps = steps = None if steps is None else min(steps, _MOST_STEPS)
        self._prior = _prior_of_step(prior, steps)
        self._whole = prior.targets.get(TRAINING_S)
        self._pace = prior.pace
        self._points: list[tuple[int, float]] = [(first_step, began_at)]

    def report(self, step: int, at: float) -> None:
        """So many steps were done at this time. Late and repeated reports change nothing."""
        last_step, last_at = self._points[-1]
        if step <= last_step or at < last_at:
            return
        self._points.append((step, at))
        if len(self._points) > _MOST_POINTS:
            self._points = [*self._points[:-1:2], self._points[-1]]

    @property
    def done(self) -> int:
        """Steps done."""
        return self._points[-1][0]

    def outlook(self, now: float) -> Outlook | None:
        """What is expected now; None where nothing is known of its length."""
        (_, began_at), (done, done_at) = self._points[0], self._points[-1]
        step = self._step_s()
        if self.steps is None or step is None:
            return self._by_whole(now, began_at)
        median, std = step
        left = max(0, self.steps - done)
        spent = done_at - began_at
        reach = 1.645  # nine in ten of a normal distribution

        def remaining(side: float) -> float:
            return max(0.0, left * math.exp(median + side * reach * std) - (now - done_at))

        sides = (0.0, -1.0, 1.0)
        left_s = [remaining(side) for side in sides]
        return Outlook(
            Interval(*left_s),
            Interval(*(max(now - began_at, spent) + one for one in left_s)),
            Interval(*(math.exp(median + side * reach * std) for side in sides)),
        )

    def spent_s(self, now: float) -> float | None:
        """Seconds of :attr:`.Outlook.total_s` that are over; None: it counts the whole training, not this launch."""
        return None if self.steps is None or self._step_s() is None else max(0.0, now - self._points[0][1])

    def drift(self) -> float | None:
        """By which factor its steps take longer than its earlier runs let expect, if that is no chance; else None."""
        measured = self._measured()
        if self._prior is None or measured is None or self.done - self._points[0][0] < 3:
            return None
        (expected, std), (seen, seen_std) = self._prior, measured
        clear = abs(seen - expected) > _DRIFTED * 1.645 * math.hypot(std, seen_std)
        return math.exp(seen - expected) if clear and abs(seen - expected) > _CHANGED else None

    def _step_s(self) -> tuple[float, float] | None:
        """(Mean, standard deviation) of the logarithm of a step's seconds from here on."""
        measured = self._measured()
        if measured is None or self._prior is None:
            return measured or self._prior
        (expected, prior_std), (seen, std) = self._prior, measured
        weight = std**-2 / (std**-2 + prior_std**-2)
        if abs(seen - expected) > 3 * math.hypot(std, prior_std):
            weight = 1.0  # it is not the run that was expected: what is measured counts alone
        return weight * seen + (1 - weight) * expected, math.hypot((std**-2 + prior_std**-2) ** -0.5, _LASTING / 2)

    def _measured(self) -> tuple[float, float] | None:
        points = self._points
        if len(points) < 2:
            return None
        warm_up = points[0][0] + max(1, int(_WARM_UP * (self.steps or 0)))
        start = next((at for at, (step, _) in enumerate(points[:-1]) if step >= warm_up), 0)
        if points[-1][0] - points[start][0] < 2:
            start = 0
        rates = [
            ((at - before_at) / (step - before), step - before)
            for (before, before_at), (step, at) in zip(points[start:], points[start + 1 :], strict=False)
        ]
        recent = max(1, int(_RECENT * len(rates)))
        whole, newest = _mean(rates), _mean(rates[-recent:])
        scatter = _scatter(rates, whole)
        mean, counted = whole, len(rates)
        if len(rates) >= 8 and (_log(newest) - _log(_mean(rates[:-recent]))) ** 2 > max(
            _CHANGED**2, (4 * scatter / math.sqrt(recent)) ** 2
        ):
            mean, counted = newest, recent
        if self._pace is not None and self.steps:
            percent = 100.0 * (points[-1][0] - points[0][0]) / self.steps
            bias, std = (float(np.interp(percent, MARKS, values)) for values in (self._pace.bias, self._pace.std))
            return _log(mean) + bias, max(std, _LASTING / 2)
        # A report stands for the steps since the last one: where single steps are reported, few of them say little.
        return _log(mean), math.hypot(scatter / math.sqrt(counted), _LASTING)

    def _by_whole(self, now: float, began_at: float) -> Outlook | None:
        if self._whole is None:
            return None
        spent = now - began_at
        left = Interval(*(max(0.0, one - spent) for one in (self._whole.median, self._whole.low, self._whole.high)))
        total = Interval(*(spent + one for one in (left.median, left.low, left.high)))
        return Outlook(left, total, Interval(0.0, 0.0, 0.0))


def _prior_of_step(prior: RunEstimate, steps: int | None) -> tuple[float, float] | None:
    of_step = prior.targets.get(STEP_S)
    if of_step is None:
        whole = prior.targets.get(TRAINING_S)
        if whole is None or not steps:
            return None
        of_step = Interval(whole.median / steps, whole.low / steps, whole.high / steps)
    return _log(of_step.median), max(0.01, _log(of_step.high / max(of_step.low, 1e-12)) / (2 * 1.645))


def _mean(rates: list[tuple[float, int]]) -> float:
    """Seconds per step over some reports, each (seconds per step, steps)."""
    return sum(seconds * steps for seconds, steps in rates) / sum(steps for _, steps in rates)


def _scatter(rates: list[tuple[float, int]], mean: float) -> float:
    """Standard deviation of the reports around their mean, relative to it; blended with what is usual."""
    squares = sum((seconds / max(mean, 1e-12) - 1) ** 2 for seconds, _ in rates)
    return min(2.0, math.sqrt((squares + _UNEVEN**2) / (len(rates) + 1)))


def _log(value: float) -> float:
    return math.log(max(value, 1e-12))
