"""Helpers that several test modules share."""

from __future__ import annotations

from hypothesis import settings


def examples(part: float) -> int:
    """So many times what the chosen Hypothesis profile tries: a property that costs more is tried less often.

    A number of its own would stay what it is in the long runs too.
    """
    return max(5, round(settings.default.max_examples * part))
