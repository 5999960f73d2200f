"""What was expected of runs beside what they needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.estimation.accuracy import TOTAL_S, WINDOW, Comparison, Score, judge, score, series, window_for
from prefect_gpu.estimation.runs import LAUNCHING_S, MEMORY_BYTES, SAVING_S, TRAINING_S, Interval
from tests.support import examples


def _compared(at: float, expected: float, measured: float, program: str = "train", reach: float = 2.0) -> Comparison:
    """A run whose training time was expected within a factor of `reach`."""
    interval = Interval(expected, expected / reach, expected * reach)
    return Comparison(f"run-{at:g}", program, at, {TRAINING_S: interval}, {TRAINING_S: measured})


# expected, measured -> relative error, whether within
PAIRS = {
    "right": (10.0, 10.0, 0.0, 1.0),
    "too long": (15.0, 10.0, 0.5, 1.0),
    "too short": (8.0, 10.0, 0.2, 1.0),
    "outside": (4.0, 10.0, 0.6, 0.0),
    "at the end of the interval": (5.0, 10.0, 0.5, 1.0),
}


@pytest.mark.parametrize("expected, measured, error, within", PAIRS.values(), ids=PAIRS)
def test_an_error_is_a_part_of_what_was_measured(expected: float, measured: float, error: float, within: float) -> None:
    assert score([_compared(0, expected, measured)], TRAINING_S) == Score(1, pytest.approx(error), within)


def test_what_was_not_estimated_or_not_measured_or_is_nothing_is_not_compared() -> None:
    ten = {TRAINING_S: Interval(10, 9, 11)}
    odd = [
        Comparison("a", "train", 0, ten, {}),
        Comparison("b", "train", 1, {}, {TRAINING_S: 10}),
        Comparison("c", "train", 2, ten, {TRAINING_S: 0.0}),
    ]
    assert score(odd, TRAINING_S) is None and score(odd, TOTAL_S) is None
    [overall, _] = judge(odd)
    assert overall.runs == 3 and not overall.scores and not overall.newest
    assert judge([]) == []


def test_the_whole_run_is_its_phases_as_far_as_they_compare() -> None:
    expected = {LAUNCHING_S: 5.0, TRAINING_S: 10.0, SAVING_S: 100.0, MEMORY_BYTES: 1e9}
    estimated = {target: Interval(value, value / 2, value * 2) for target, value in expected.items()}
    run = Comparison("a", "train", 0, estimated, {LAUNCHING_S: 4.0, TRAINING_S: 8.0, MEMORY_BYTES: 1e9})
    assert score([run], TOTAL_S) == Score(1, pytest.approx((15 - 12) / 12), None)
    assert series([run], TOTAL_S).within is None
    assert run.pair(SAVING_S) is None


def test_programs_with_most_runs_come_first_after_all_together() -> None:
    compared = [_compared(at, 10.0, 10.0 + at, "few" if at < 2 else "many") for at in range(6)]
    overall, many, few = judge(compared)
    assert (overall.program, many.program, few.program) == (None, "many", "few")
    assert (overall.runs, many.runs, few.runs) == (6, 4, 2)
    assert few.scores[TRAINING_S].error == pytest.approx(0.5 * (0 + 1 / 11))


def test_the_newest_runs_are_told_apart() -> None:
    compared = [_compared(at, 10.0, 10.0 if at >= 20 else 100.0) for at in reversed(range(20 + WINDOW))]
    [overall, _] = judge(compared)
    assert overall.newest[TRAINING_S] == Score(WINDOW, 0.0, 1.0)
    assert overall.scores[TRAINING_S] == Score(20 + WINDOW, pytest.approx(0.45), 0.5)


def test_a_running_figure_is_of_a_window_of_runs_in_the_order_of_their_ends() -> None:
    compared = [_compared(at, 10.0, measured) for at, measured in ((3, 10.0), (1, 20.0), (2, 100.0))]
    found = series(compared, TRAINING_S, window=2)
    assert found.at.tolist() == [1, 2, 3]
    assert found.error == pytest.approx([0.5, 0.9, 0.0])
    assert found.median == pytest.approx([0.5, 0.7, 0.45])
    assert found.within is not None and found.within.tolist() == [1.0, 0.5, 0.5]


@pytest.mark.parametrize("window", [1, 2, 5, 6, 7])
def test_a_window_may_be_longer_than_the_history(window: int) -> None:
    errors = [0.1, 0.5, 0.2, 0.9, 0.4, 0.3]
    compared = [_compared(at, 10.0 + 10 * error, 10.0) for at, error in enumerate(errors)]
    expected = [np.median(errors[max(0, end - window) : end]) for end in range(1, 7)]
    assert series(compared, TRAINING_S, window).median == pytest.approx(expected)


def test_long_curves_are_smoother() -> None:
    assert [window_for(runs) for runs in (1, 2000, 100_000)] == [WINDOW, WINDOW, 1000]


@settings(max_examples=examples(0.3))
@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 1e6), st.floats(0.1, 1e6)), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_the_order_of_the_history_does_not_matter(runs: list[tuple[float, float, float]], chance: object) -> None:
    compared = [
        Comparison(f"{at}", "train", end, {TRAINING_S: Interval(expected, 0, 1e3)}, {TRAINING_S: measured})
        for at, (end, expected, measured) in enumerate(runs)
    ]
    shuffled = compared.copy()
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judge(shuffled) == judge(compared)
    here, there = series(compared, TRAINING_S), series(shuffled, TRAINING_S)
    assert here.median.tolist() == there.median.tolist() and len(here.at) == len(runs)
    assert 0 <= here.within.min() <= here.within.max() <= 1  # type: ignore[union-attr]
