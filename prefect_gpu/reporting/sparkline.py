"""A curve in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text, lowest value as the lowest bar.

    Args:
        values: Finite, at least one.
        width: Characters at most; of more values, some are shown, the ends among them.

    Example:
        >>> sparkline([3.0, 2.0, 1.0])
        '█▄▁'
    """
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    if high == low:
        return _BARS[0] * len(values)
    return "".join(_BARS[int((value - low) / (high - low) * (len(_BARS) - 1))] for value in values)
