"""Curves in one line of text."""

from __future__ import annotations

import pytest

from prefect_gpu.reporting.sparkline import sparkline

CURVES: dict[str, tuple[list[float], str]] = {
    "falling": ([3.0, 2.0, 1.0], "█▄▁"),
    "rising": ([0.0, 7.0], "▁█"),
    "all bars": ([float(value) for value in range(8)], "▁▂▃▄▅▆▇█"),
    "flat": ([0.5, 0.5], "▁▁"),
    "one point": ([7.0], "▁"),
    "negative": ([-1.0, -3.0], "█▁"),
    "beyond all bounds": ([1e308, -1e308], "█▁"),
    "hardly different": ([1e300, 1e300 * (1 - 1e-15)], "█▁"),
}


@pytest.mark.parametrize("values, expected", CURVES.values(), ids=CURVES.keys())
def test_sparkline(values: list[float], expected: str) -> None:
    assert sparkline(values) == expected


@pytest.mark.parametrize("points", [60, 61, 512])
def test_a_long_curve_keeps_its_ends(points: int) -> None:
    line = sparkline([float(-value) for value in range(points)])
    assert len(line) == 60 and line[0] == "█" and line[-1] == "▁"
