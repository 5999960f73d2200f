"""How much a run still learns: SpeCon's growth, of any scale, in either direction, with noise."""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.sharing.plateau import LossTrend
from tests.components import traces_folder
from tests.support import examples

ALPHA = 0.01  # SpeCon's threshold
VALUES = st.lists(st.integers(-1000, 1000).map(float), min_size=5, max_size=30)


def _growths(values: Sequence[float], interval_s: float = 10.0) -> list[float]:
    """One value in each interval."""
    growth = LossTrend(interval_s)
    found = [growth.observe(step * interval_s, value) for step, value in enumerate(values)]
    return [one for one in found if one is not None]


def _noisy(count: int, std: float, seed: int = 0) -> list[float]:
    """A loss that falls from 5 to 1 within some 40 intervals."""
    rng = random.Random(seed)
    return [1.0 + 4.0 * math.exp(-step / 10) + rng.gauss(0, std) for step in range(count)]


@pytest.mark.parametrize("interval_s", [0.0, -1.0, math.nan, math.inf])
def test_an_interval_that_is_none_is_refused(interval_s: float) -> None:
    with pytest.raises(ValueError, match="interval_s is"):
        LossTrend(interval_s)


def test_a_steady_climb_grows_by_one_over_the_intervals_so_far() -> None:
    assert _growths([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx([1 / 2, 1 / 3, 1 / 4])


def test_the_first_growth_is_after_three_intervals() -> None:
    growth = LossTrend(10.0)
    assert [growth.observe(10.0 * step, -step) for step in range(4)] == [None, None, None, pytest.approx(0.5)]


@given(VALUES, st.sampled_from((-1e6, -3.0, -1e-3, 1e-3, 7.0, 1e9)), st.integers(-1000, 1000))
@settings(max_examples=examples(0.6))
def test_growth_is_the_same_in_any_unit_and_either_direction(values: list[float], scale: float, shift: int) -> None:
    moved = [scale * (value + shift) for value in values]
    assert _growths(moved) == pytest.approx(_growths(values), rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(-1e300, 1e300), max_size=20))
@settings(max_examples=examples(0.6))
def test_growth_is_a_fraction_whatever_is_reported(values: list[float]) -> None:
    assert all(0.0 <= growth <= 1.0 for growth in _growths(values))


@given(st.floats(-1e12, 1e12))
@settings(max_examples=examples(0.2))
def test_a_constant_does_not_grow(value: float) -> None:
    assert set(_growths([value] * 12)) == {0.0}


@pytest.mark.parametrize("std", [0.0, 0.02, 0.1])
def test_a_noisy_loss_grows_first_and_converges_then(std: float) -> None:
    growths = _growths(_noisy(120, std))
    assert min(growths[:8]) > ALPHA
    late = growths[60:]
    assert sum(growth < ALPHA for growth in late) > 0.9 * len(late)


def test_jitter_without_progress_seldom_counts_as_growth() -> None:
    rng = random.Random(3)
    growths = _growths([rng.gauss(5, 1) for _ in range(200)])[20:]
    assert sum(growth < ALPHA for growth in growths) > 0.4 * len(growths)
    assert max(growths) < 0.3


def test_a_jump_after_a_plateau_is_growth_again() -> None:
    """A learning rate that drops lets the accuracy jump."""
    growths = _growths([0.7 - 0.6 * math.exp(-step / 3) for step in range(30)] + [0.8] * 10)
    assert growths[24] < ALPHA
    assert max(growths[27:34]) > 2 * ALPHA
    assert growths[-1] < ALPHA


def test_one_outlier_changes_little() -> None:
    values = [10.0 - step / 2 for step in range(12)]
    with_outlier = [*values[:7], 500.0, *values[8:]]
    assert _growths(with_outlier) == pytest.approx(_growths(values), abs=0.08)


def test_many_reports_in_an_interval_count_by_their_median() -> None:
    growth = LossTrend(10.0)
    found = [
        growth.observe(10.0 * interval + step, interval + noise)
        for interval in range(8)
        for step, noise in enumerate((0.0, 0.3, -0.3, 50.0, -0.1))
    ]
    assert [one for one in found if one is not None][-1] == pytest.approx(1 / 6)


def test_intervals_without_a_report_are_waited_out() -> None:
    growth = LossTrend(10.0)
    assert [growth.observe(70.0 * step, step) for step in range(4)][-1] == pytest.approx(0.5)


def test_what_is_no_news_is_passed_over() -> None:
    growth = LossTrend(10.0)
    for step in range(5):
        growth.observe(10.0 * step, float(step))
    before = vars(growth).copy()
    for value, at in (
        (math.nan, 60.0),
        (math.inf, 60.0),
        (-1e305, 60.0),
        (5.0, math.inf),
        (5.0, math.nan),
        (5.0, 30.0),
    ):
        assert growth.observe(at, value) is None
    assert vars(growth) == before
    assert growth.observe(50.0, 5.0) == pytest.approx(0.25)


@pytest.mark.needs("traces")
def test_published_validation_curves_converge_late_and_never_early() -> None:
    curves = sorted((traces_folder() / "pkusys-ElasticFlow" / "pollux_traces").glob("*/validation-*.csv"))
    seen = 0
    for path in curves:
        with path.open(newline="") as file:
            values = [float(row["metric"]) for row in csv.DictReader(file)]
        if len(values) < 50:
            continue
        growths = _growths(values)
        assert min(growths[:5]) > ALPHA, path
        assert sum(growth < ALPHA for growth in growths[-10:]) >= 8, path
        seen += 1
    assert seen == 26
