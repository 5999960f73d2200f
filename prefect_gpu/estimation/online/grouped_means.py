"""Means of nested groups that help each other out: the mean of a group with few members leans on the group around it.

A value's place names its groups from the widest to the narrowest: ("bert", 4, 32) lies in ("bert", 4), in ("bert",) and
in (), the group of all. Each group's mean is drawn towards that of the group around it by as many imaginary members as
the scatter within groups is larger than that between them (the empirical-Bayes weight of a one-way random-effects
model, its variances by the method of moments). Groups of like values are trusted after one; groups that differ by
chance alone are hardly told apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

MOST_GROUPS = 50_000  # of each width; beyond them a value counts in the wider groups only
PRIOR_BETWEEN = 1.0  # variance of group means around the wider group's, worth one group, before any are known
OWN_SCATTER = 2.0  # members that the scatter common to all groups is worth beside a group's own


class Prediction(NamedTuple):
    """What the next value of a group is expected to be.

    Attributes:
        mean: Its expectation.
        variance: Of the value around ``mean``.
        members: Values seen in the narrowest known group; 0 where nothing is known.
        depth: How many parts of its place that group shares: 0 for the group of all.
    """

    mean: float
    variance: float
    members: int
    depth: int


class _Group:
    __slots__ = ("mean", "n", "squares", "weight")

    def __init__(self) -> None:
        self.n, self.weight, self.mean = 0, 0.0, 0.0
        self.squares = 0.0  # weighted sum of squared distances from the mean


class _Width:
    """All groups of one width, and their scatter."""

    __slots__ = ("groups", "n", "squares", "weight")

    def __init__(self) -> None:
        self.groups: dict[Hashable, _Group] = {}
        self.n, self.weight, self.squares = 0, 0.0, 0.0


class GroupedMeans:
    """Running means and scatters of values in nested groups.

    The time of a call does not grow with the number of values; memory grows with the number of groups only. What is
    predicted does not depend on the order in which values came, but for the rounding of floats.

    Args:
        depth: Parts that name a value's place.
        prior_within: Variance within a group, worth one value, before any are known.
    """

    def __init__(self, depth: int, prior_within: float) -> None:
        self._prior_within = prior_within
        self._widths = [_Width() for _ in range(depth + 1)]

    def __len__(self) -> int:
        return self._widths[0].n

    def add(self, place: Sequence[Hashable], value: float, weight: float = 1.0) -> None:
        """Count a finite value in every group around its place.

        Args:
            place: What names the value's groups, the widest first.
            value: The value.
            weight: How much it tells, over 0 and up to 1: a value of weight 1/4 scatters twice as far.
        """
        for depth, width in enumerate(self._widths):
            key = tuple(place[:depth])
            group = width.groups.get(key)
            if group is None:
                if len(width.groups) >= MOST_GROUPS:
                    return
                group = width.groups[key] = _Group()
            group.n += 1
            group.weight += weight
            away = value - group.mean
            group.mean += away * weight / group.weight
            scatter = weight * away * (value - group.mean)
            group.squares += scatter
            width.n += 1
            width.weight += weight
            width.squares += scatter

    def predict(self, place: Sequence[Hashable]) -> Prediction | None:
        """What to expect of the next value at a place; None before the first value of all."""
        group = self._widths[0].groups.get(())
        if group is None:
            return None
        mean, leaning, depth, within = group.mean, 0.0, 0, self._within(0)
        for deeper in range(1, len(self._widths)):
            narrower = self._widths[deeper].groups.get(tuple(place[:deeper]))
            if narrower is None:
                break
            group, depth, within = narrower, deeper, self._within(deeper)
            leaning = within / self._between(deeper, within)
            mean = (group.weight * group.mean + leaning * mean) / (group.weight + leaning)
        variance = (group.squares + OWN_SCATTER * within) / (group.n - 1 + OWN_SCATTER)
        return Prediction(mean, variance * (1 + 1 / (group.weight + leaning)), group.n, depth)

    def _within(self, depth: int) -> float:
        """Variance of values around the means of the groups of one width."""
        width = self._widths[depth]
        return (width.squares + self._prior_within) / (width.n - len(width.groups) + 1)

    def _between(self, depth: int, within: float) -> float:
        """Variance of the means of the groups of one width around those of the groups one wider."""
        width, wider = self._widths[depth], self._widths[depth - 1]
        freedom = len(width.groups) - len(wider.groups)
        by_chance = freedom * within
        excess = max(0.0, wider.squares - width.squares - by_chance) * len(width.groups) / width.weight
        return (excess + PRIOR_BETWEEN) / (max(0, freedom) + 1)
