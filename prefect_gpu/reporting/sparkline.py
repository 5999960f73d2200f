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
    if high / 2 == low / 2:
        return _BARS[0] * len(values)
    height = high / 2 - low / 2  # halved: the whole may be beyond a float's range
    return "".join(_BARS[int((value / 2 - low / 2) / height * (len(_BARS) - 1))] for value in values)
