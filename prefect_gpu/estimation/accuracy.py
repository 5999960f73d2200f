"""How good estimates have been: what was expected of runs beside what they turned out to need."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prefect_gpu.estimation.runs import LAUNCHING_S, MEMORY_BYTES, SAVING_S, TRAINING_S, Interval

TOTAL_S = "total_s"  # from the grant to the end: launching, training and saving; its estimate has no interval
JUDGED = (TRAINING_S, TOTAL_S, MEMORY_BYTES)
WINDOW = 20  # runs that a running figure is taken over
_PARTS = 100  # of a long curve
_PHASES = (LAUNCHING_S, TRAINING_S, SAVING_S)


@dataclass(frozen=True)
class Comparison:
    """One completed run that had been estimated before it trained.

    Attributes:
        run_id: Its name.
        program: What it ran: the flow's name.
        ended_at: Unix seconds.
        estimated: By target, what was expected.
        measured: By target, what it needed, in the units of the targets.
    """

    run_id: str
    program: str
    ended_at: float
    estimated: Mapping[str, Interval]
    measured: Mapping[str, float]

    def pair(self, target: str) -> tuple[Interval, float] | None:
        """(What was expected, what was measured) of a target or of :data:`TOTAL_S`; None if they do not compare."""
        if target != TOTAL_S:
            estimated, measured = self.estimated.get(target), self.measured.get(target)
            return (estimated, measured) if estimated is not None and measured is not None and measured > 0 else None
        known = [phase for phase in _PHASES if phase in self.estimated and phase in self.measured]
        total = sum(self.measured[phase] for phase in known)
        if TRAINING_S not in known or total <= 0:
            return None
        expected = sum(self.estimated[phase].median for phase in known)
        return Interval(expected, expected, expected), total


@dataclass(frozen=True, slots=True)
class Score:
    """How good the estimates of one target were.

    Attributes:
        runs: How many were compared.
        error: Median of the errors, each as a part of what was measured.
        within: Share of 1 that lay within their intervals; None: there are no intervals.
    """

    runs: int
    error: float
    within: float | None


@dataclass(frozen=True)
class Accuracy:
    """How good the estimates of one program were, or of all.

    Attributes:
        program: None: all programs.
        runs: Completed runs that had been estimated.
        scores: By target, of all those runs; a target of which nothing was compared is missing.
        newest: The same of the newest :data:`WINDOW` runs.
    """

    program: str | None
    runs: int
    scores: Mapping[str, Score]
    newest: Mapping[str, Score]


@dataclass(frozen=True)
class Series:
    """How good the estimates of one target were over time; arrays of shape (runs compared,), oldest first.

    Attributes:
        at: When each run ended, Unix seconds.
        error: Its relative error.
        median: Median error of it and of those before it, :data:`WINDOW` in all.
        within: Share of those that lay within their intervals; None: there are no intervals.
    """

    at: np.ndarray
    error: np.ndarray
    median: np.ndarray
    within: np.ndarray | None


def judge(comparisons: Sequence[Comparison]) -> list[Accuracy]:
    """All programs together first, then each program, those with most runs first; empty if there is no comparison."""
    if not comparisons:
        return []
    by_program: dict[str, list[Comparison]] = defaultdict(list)
    for one in comparisons:
        by_program[one.program].append(one)
    ordered = sorted(by_program.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_accuracy(None, comparisons), *(_accuracy(name, its) for name, its in ordered)]


def score(comparisons: Sequence[Comparison], target: str) -> Score | None:
    """How good the estimates of a target were; None if there is nothing to compare."""
    error, inside = _errors(comparisons, target)[1:]
    if not len(error):
        return None
    return Score(len(error), float(np.median(error)), None if target == TOTAL_S else float(inside.mean()))


def series(comparisons: Sequence[Comparison], target: str, window: int = WINDOW) -> Series:
    """How good the estimates of a target were as time went by.

    Args:
        window: Runs that each running figure is taken over; the first ones are taken over fewer.
    """
    at, error, inside = _errors(comparisons, target)
    median = _running_median(error.tolist(), window)
    within = None if target == TOTAL_S else _running_mean(inside, window)
    return Series(at, error, median, within)


def window_for(runs: int) -> int:
    """How many runs to take a running figure over, so that a curve over so many runs can still be read."""
    return max(WINDOW, runs // _PARTS)


def _running_median(values: Sequence[float], window: int) -> np.ndarray:
    found, ranked = [], list[float]()
    for at, value in enumerate(values):
        insort(ranked, value)
        if at >= window:
            del ranked[bisect_left(ranked, values[at - window])]
        found.append((ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2)
    return np.array(found)


def _running_mean(values: np.ndarray, window: int) -> np.ndarray:
    total = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    first = np.maximum(end - window, 0)
    return (total[end] - total[first]) / (end - first)


def _accuracy(program: str | None, comparisons: Sequence[Comparison]) -> Accuracy:
    newest = sorted(comparisons, key=_order)[-WINDOW:]
    scores, of_newest = (
        {target: found for target in JUDGED if (found := score(some, target)) is not None}
        for some in (comparisons, newest)
    )
    return Accuracy(program, len(comparisons), scores, of_newest)


def _errors(comparisons: Sequence[Comparison], target: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(Ends, relative errors, whether within the interval) of the runs that compare, oldest first."""
    found = [(one.ended_at, *pair) for one in sorted(comparisons, key=_order) if (pair := one.pair(target)) is not None]
    at = np.array([end for end, _, _ in found])
    error = np.array([abs(expected.median - measured) / measured for _, expected, measured in found])
    inside = np.array([expected.low <= measured <= expected.high for _, expected, measured in found], dtype=bool)
    return at, error, inside


def _order(comparison: Comparison) -> tuple[float, str]:
    return comparison.ended_at, comparison.run_id
