"""While a run trains, what is measured replaces what was estimated."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.online.training import Outlook, Training
from prefect_gpu.estimation.runs import NOTHING_KNOWN, STEP_S, TRAINING_S, Interval, RunEstimate
from tests.support import examples

_ONE_SECOND = RunEstimate({STEP_S: Interval(1.0, 0.7, 1.4)})
_BEGAN = 1000.0


def _after(step_s: list[float], steps: int | None = 1000, prior: RunEstimate = NOTHING_KNOWN) -> Training:
    """A training of which so many steps are done, each of which took so long."""
    training = Training(prior, steps, _BEGAN)
    at = _BEGAN
    for done, seconds in enumerate(step_s, 1):
        at += seconds
        training.report(done, at)
    return training


def _outlook(step_s: list[float], steps: int | None = 1000, prior: RunEstimate = NOTHING_KNOWN) -> Outlook:
    found = _after(step_s, steps, prior).outlook(_BEGAN + sum(step_s))
    assert found is not None
    return found


def test_a_constant_pace_gives_the_exact_end() -> None:
    outlook = _outlook([2.0] * 50)
    assert outlook.remaining_s.median == pytest.approx(1900)
    assert outlook.total_s.median == pytest.approx(2000)
    assert outlook.remaining_s.low < 1900 < outlook.remaining_s.high


def test_between_reports_the_end_stays() -> None:
    training = _after([2.0] * 50)
    now, later = training.outlook(_BEGAN + 100), training.outlook(_BEGAN + 101)
    assert now is not None and later is not None
    assert later.remaining_s.median == pytest.approx(now.remaining_s.median - 1)
    assert later.total_s.median == pytest.approx(now.total_s.median)


def test_a_slow_first_step_says_nothing_of_the_others() -> None:
    assert _outlook([60.0] + [1.0] * 30).remaining_s.median == pytest.approx(969, rel=0.001)


def test_what_was_estimated_counts_less_with_each_report() -> None:
    medians = [_outlook([1.2] * done, prior=_ONE_SECOND).step_s.median for done in (1, 3, 10, 100)]
    assert medians[0] > 1.0 and medians == sorted(medians) and medians[-1] == pytest.approx(1.2, rel=0.01)


def test_before_the_first_step_the_estimate_stands() -> None:
    outlook = _outlook([], prior=_ONE_SECOND)
    assert outlook.remaining_s.median == pytest.approx(1000)
    assert outlook.step_s.low == pytest.approx(1 / math.sqrt(2), rel=0.02)
    assert outlook.step_s.high == pytest.approx(math.sqrt(2), rel=0.02)


def test_late_and_repeated_reports_change_nothing() -> None:
    training = _after([1.0, 1.5, 0.8, 1.1])
    before = training.outlook(_BEGAN + 10)
    for step, at in ((4, _BEGAN + 9), (2, _BEGAN + 9), (0, _BEGAN + 9), (5, _BEGAN + 1)):
        training.report(step, at)
    assert training.done == 4 and training.outlook(_BEGAN + 10) == before


def test_a_change_of_pace_is_followed() -> None:
    assert _outlook([1.0] * 90 + [3.0] * 30).step_s.median == pytest.approx(3.0, rel=0.01)


def test_a_run_that_carries_on_counts_only_its_own_steps() -> None:
    training = Training(NOTHING_KNOWN, 1000, _BEGAN, first_step=600)
    for step in range(601, 651):
        training.report(step, _BEGAN + 2.0 * (step - 600))
    outlook = training.outlook(_BEGAN + 100)
    assert outlook is not None and outlook.remaining_s.median == pytest.approx(700)


def test_where_the_steps_are_unknown_the_whole_is_what_was_estimated() -> None:
    prior = RunEstimate({TRAINING_S: Interval(100, 50, 200)})
    assert _outlook([1.0] * 20, steps=None, prior=prior).remaining_s == Interval(80, 30, 180)
    assert _after([1.0] * 20, steps=None).outlook(_BEGAN + 20) is None


def test_an_estimate_of_the_whole_is_one_of_its_steps() -> None:
    prior = RunEstimate({TRAINING_S: Interval(2000, 1800, 2200)})
    assert _outlook([], prior=prior).step_s.median == pytest.approx(2.0)


# seconds of its steps, what was estimated -> by which factor it drifted
DRIFTS: dict[str, tuple[list[float], RunEstimate, float | None]] = {
    "as expected": ([1.0] * 50, _ONE_SECOND, None),
    "within what was expected": ([1.35] * 50, _ONE_SECOND, None),
    "one slow step": ([1.0] * 20 + [30.0] + [1.0] * 20, _ONE_SECOND, None),
    "too early to say": ([5.0] * 2, _ONE_SECOND, None),
    "nothing was expected": ([5.0] * 50, NOTHING_KNOWN, None),
    "far slower": ([5.0] * 50, _ONE_SECOND, 5.0),
    "far faster": ([0.1] * 50, _ONE_SECOND, 0.1),
}


@pytest.mark.parametrize("step_s, prior, factor", DRIFTS.values(), ids=DRIFTS)
def test_only_a_pace_that_no_chance_explains_is_drift(
    step_s: list[float], prior: RunEstimate, factor: float | None
) -> None:
    found = _after(step_s, prior=prior).drift()
    assert found is None if factor is None else found == pytest.approx(factor, rel=0.02)


def test_reports_that_arrive_all_at_once_are_no_error() -> None:
    """A channel that was cut off sends what it kept in one go."""
    outlook = _outlook([0.0] * 20)
    assert outlook.remaining_s.median < 1e-3


def test_steps_beyond_all_bounds_are_no_error() -> None:
    for steps in (0, -5, 10**400):
        training = _after([1.0] * 5, steps=steps, prior=RunEstimate({TRAINING_S: Interval(100, 50, 200)}))
        outlook = training.outlook(_BEGAN + 5)
        assert outlook is None or math.isfinite(outlook.remaining_s.high)


@settings(max_examples=examples(1), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1e6)), max_size=20),
    st.none() | st.integers(0, 10_000),
    st.sampled_from([NOTHING_KNOWN, _ONE_SECOND, RunEstimate({TRAINING_S: Interval(1e18, 1e-3, 1e18)})]),
    st.floats(0, 1e6),
)
def test_an_outlook_is_sensible_for_any_reports(
    reports: list[tuple[int, float]], steps: int | None, prior: RunEstimate, waited: float
) -> None:
    training = Training(prior, steps, _BEGAN)
    step, at = 0, _BEGAN
    for more, seconds in reports:
        step, at = step + more, at + seconds
        training.report(step, at)
    training.drift()
    outlook = training.outlook(at + waited)
    assert outlook is not None or steps is None or prior is NOTHING_KNOWN
    for interval in () if outlook is None else (outlook.remaining_s, outlook.total_s, outlook.step_s):
        assert 0 <= interval.low <= interval.median <= interval.high < math.inf
    if outlook is not None:
        assert outlook.total_s.low >= (at - _BEGAN) * (1 - 1e-12)
