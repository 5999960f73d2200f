"""How much programs slow each other down, learned from runs that shared a node or a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from prefect_gpu.estimation.runs import Interval

MOST_OBSERVATIONS = 1000  # the newest; the time of a fit grows with the cube
LEAST_RATIO = 0.01
# What a neighbour's effect is made of, as variances of the logarithm of the ratio; only their proportions matter.
_ANY = 0.03  # any neighbour on any program
_PROGRAM = 0.02  # how easily a program is disturbed
_NEIGHBOUR = 0.01  # how much a program disturbs
_PLACED = 0.005  # the same two, of a program as it is placed
_PAIR = 0.02  # two programs, however they are placed
_PLACED_PAIR = 0.01  # two programs as they are placed
_NOISE = 0.005  # a measurement
_TRUST = 4.0  # so many measurements' worth of belief in the variances as they stand here


class Party(NamedTuple):
    """A run, as its neighbours meet it.

    Attributes:
        program: What it runs.
        placement: How it is placed, or sized: any value that equal ones share, such as (GPUs, nodes).
    """

    program: str
    placement: object = None


class Sensitivity:
    """Throughput beside neighbours ÷ throughput alone (DeepShare's 1 ÷ CS, §III), of any pair.

    In logarithms the ratio is the sum over the neighbours of effects: of any neighbour, of the program disturbed, of
    the one that disturbs, of the two together, and of each as it is placed. All effects are shrunk towards 0 by how
    few measurements there are of them (random effects, best linear prediction). So a pair that was measured often is
    what was measured, one that was not is what both do to others, and a new program is as others are on average.

    Observations may be of several neighbours at once: their effects add up. Ratios above 1 are noise and count as 1.
    Intervals are meant to hold in nine of ten cases.
    """

    def __init__(self) -> None:
        self._observed: list[tuple[Party, tuple[Party, ...], float]] = []
        self._fitted: _Fitted | None = None

    def observe(self, program: Party, neighbours: Iterable[Party], ratio: float) -> None:
        """Take a measurement. The next prediction fits anew, so observe many before asking.

        Args:
            program: Who was measured.
            neighbours: Who shared its node or device then; without any there is nothing to learn.
            ratio: Its step rate then ÷ its step rate alone.

        Raises:
            ValueError: The ratio is not a positive number.
        """
        if not 0 < ratio < math.inf:
            raise ValueError(f"ratio of {program} is {ratio}: give its step rate beside others ÷ alone, above 0")
        beside = tuple(neighbours)
        if not beside:
            return
        self._observed.append((program, beside, math.log(min(max(ratio, LEAST_RATIO), 1.0))))
        if len(self._observed) > MOST_OBSERVATIONS:
            del self._observed[0]
        self._fitted = None

    def predict(self, program: Party, *neighbours: Party) -> Interval:
        """Its throughput beside these neighbours ÷ alone: above 0, at most 1. Alone it is 1.

        Before anything was observed the median is 1 (nothing is known against it) and the interval is wide.
        """
        if not neighbours:
            return Interval(1.0, 1.0, 1.0)
        if self._fitted is None:
            self._fitted = _Fitted(self._observed)
        mean, std = self._fitted.predict(program, neighbours)
        wide = NormalDist().inv_cdf(0.95) * std
        median, low, high = (min(1.0, max(LEAST_RATIO, math.exp(at))) for at in (mean, mean - wide, mean + wide))
        return Interval(median, low, high)


class _Fitted:
    def __init__(self, observed: Sequence[tuple[Party, tuple[Party, ...], float]]) -> None:
        self._pairs = [(program, neighbour) for program, beside, _ in observed for neighbour in beside]
        # Row by observation: which of the pairs it sums.
        self._sums = np.zeros((len(observed), len(self._pairs)))
        at = 0
        for row, (_, beside, _) in enumerate(observed):
            self._sums[row, at : at + len(beside)] = 1.0
            at += len(beside)
        values = np.array([value for _, _, value in observed])
        covariance = self._sums @ _covariance(self._pairs, self._pairs) @ self._sums.T
        covariance[np.diag_indices_from(covariance)] += _NOISE
        self._factor = cho_factor(covariance, lower=True) if observed else None
        self._alpha = cho_solve(self._factor, values) if observed else values
        self._scale = math.sqrt((float(values @ self._alpha) + _TRUST) / (len(values) + _TRUST))

    def predict(self, program: Party, neighbours: Sequence[Party]) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of the next measurement."""
        pairs = [(program, neighbour) for neighbour in neighbours]
        own = float(_covariance(pairs, pairs).sum()) + _NOISE
        if self._factor is None:
            return 0.0, math.sqrt(own)
        cross = self._sums @ _covariance(self._pairs, pairs).sum(axis=1)
        variance = own - float(cross @ cho_solve(self._factor, cross))
        return float(cross @ self._alpha), self._scale * math.sqrt(max(variance, _NOISE))


_Pair = tuple[Party, Party]


def _covariance(rows: Sequence[_Pair], columns: Sequence[_Pair]) -> np.ndarray:
    """Of the effects of pairs: what they have in common; shape (rows, columns)."""

    def same(of: Callable[[_Pair], object]) -> np.ndarray:
        numbers: dict[object, int] = {}
        left = np.array([numbers.setdefault(of(pair), len(numbers)) for pair in rows])
        right = np.array([numbers.setdefault(of(pair), len(numbers)) for pair in columns])
        return np.asarray(left[:, None] == right[None, :], dtype=float)

    return np.asarray(
        _ANY
        + _PROGRAM * same(lambda pair: pair[0].program)
        + _NEIGHBOUR * same(lambda pair: pair[1].program)
        + _PLACED * (same(lambda pair: pair[0]) + same(lambda pair: pair[1]))
        + _PAIR * same(lambda pair: (pair[0].program, pair[1].program))
        + _PLACED_PAIR * same(lambda pair: pair)
    )
