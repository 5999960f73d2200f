"""Has a program changed? Its newer runs then take longer, or less, than its older ones say they should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_LEAST_BEFORE, _LEAST_AFTER = 5, 3  # runs on either side of a change
_CLEAR = 6.0  # standard errors between the two sides; chance alone finds 4 somewhere in a long row
_LARGE = math.log(1.15)  # smaller changes are not worth telling


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


def find_change(residuals: np.ndarray, ended_at: Sequence[float], target: str) -> Change | None:
    """Where the residuals of a program's runs jump, if they do.

    Args:
        residuals: Logarithms of measured over predicted, oldest run first; shape (runs,).
        ended_at: When each run ended, in Unix seconds.
        target: What was measured.
    """
    count = len(residuals)
    best: tuple[float, int, float] | None = None
    for first in range(_LEAST_BEFORE, count - _LEAST_AFTER + 1):
        before, after = residuals[:first], residuals[first:]
        jump = float(np.median(after) - np.median(before))
        # Scatter on each side by the median, so that a few slow runs (a busy machine) are no change.
        scatter = 1.4826 * float(
            np.median(np.abs(np.concatenate([before - np.median(before), after - np.median(after)])))
        )
        error = max(scatter, 0.01) * 1.25 * math.sqrt(1 / first + 1 / (count - first))
        clear = abs(jump) / error
        if clear > _CLEAR and abs(jump) > _LARGE and (best is None or clear > best[0]):
            best = clear, first, jump
    if best is None:
        return None
    _, first, jump = best
    return Change(first, ended_at[first], math.exp(jump), target)
