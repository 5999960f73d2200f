"""Has a program changed? Its newer runs then take longer, or less, than its older ones say they should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LEAST_BEFORE, _LEAST_AFTER = 5, 3  # runs on either side of a change
_CLEAR = 6.0  # standard errors between the two sides; chance alone finds 4 somewhere in a long row
_LARGE = math.log(1.15)  # smaller changes are not worth telling
_FAR = 4.0  # scatters from the middle, and a factor of e, that a single run counts for at most


@dataclass(frozen=True)
class Change:
    """A change that lasts.

    Attributes:
        first: Index of the first run after it.
        at: When that run ended, in Unix seconds.
        factor: By how much the target was multiplied.
        target: What changed.
    """

    first: int
    at: float
    factor: float
    target: str

    @property
    def is_large(self) -> bool:
        """Whether it is worth telling. What seemed large may be explained by what else the runs differ in.

        Example:
            >>> Change(5, 0.0, 2.0, "step_s").is_large, Change(5, 0.0, 0.97, "step_s").is_large
            (True, False)
        """
        return abs(math.log(self.factor)) > _LARGE


def find_change(residuals: np.ndarray, ended_at: Sequence[float], target: str) -> Change | None:
    """Where the residuals of a program's runs jump, if they do.

    Args:
        residuals: Logarithms of measured over predicted, oldest run first; shape (runs,).
        ended_at: When each run ended, in Unix seconds.
        target: What was measured.
    """
    count = len(residuals)
    splits = range(_LEAST_BEFORE, count - _LEAST_AFTER + 1)
    clear, scatter = max((_clearness(residuals, first) for first in splits), default=(0.0, 0.0))
    if clear <= _CLEAR:
        return None
    # Medians tell that there is a change, squares tell where; a few slow runs (a busy machine) count as less slow ones.
    middle = float(np.median(residuals))
    tamed = np.clip(residuals, middle - _FAR * scatter - 1.0, middle + _FAR * scatter + 1.0)
    first = min(splits, key=lambda at: tamed[:at].var() * at + tamed[at:].var() * (count - at))
    jump = float(np.median(residuals[first:]) - np.median(residuals[:first]))
    if abs(jump) <= _LARGE or _clearness(residuals, first)[0] <= _CLEAR:
        return None
    return Change(first, ended_at[first], math.exp(jump), target)


def _clearness(residuals: np.ndarray, first: int) -> tuple[float, float]:
    """(How many standard errors the medians on both sides of a split are apart, the scatter around them)."""
    before, after = residuals[:first], residuals[first:]
    low, high = float(np.median(before)), float(np.median(after))
    scatter = 1.4826 * float(np.median(np.abs(np.concatenate([before - low, after - high]))))
    error = max(scatter, 0.01) * 1.25 * math.sqrt(1 / first + 1 / len(after))
    return abs(high - low) / error, scatter
