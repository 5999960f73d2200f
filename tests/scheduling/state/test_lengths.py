"""What is left of a run whose estimate may be wrong."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request
from prefect_gpu.scheduling.state.lengths import Lengths, expected_left, next_step_s


def wrong_by(error: float, runs: int = 2_000, program: str = "") -> Lengths:
    """After so many runs of a program whose truth was their estimate times a factor of such a spread."""
    chance, lengths = random.Random(1), Lengths()
    for _ in range(runs):
        service_s = 100.0 * math.exp(chance.gauss(0.0, error))
        lengths.came_true(100.0, service_s, program)
        lengths.ended(1, service_s)
    return lengths


def left_of(done_s: float, lengths: Lengths) -> tuple[float, bool]:
    job = Job("a", Request(), "default", 0.0, 0.0, "", Estimate(service_s=1_000.0))
    job.done_s = done_s
    return expected_left(job, 0.0, lengths)


@given(st.floats(0.0, 1_000.0))
def test_estimates_that_were_right_are_taken_as_they_are(done_s: float) -> None:
    assert left_of(done_s, wrong_by(0.0, runs=20)) == (1_000.0 - done_s, True)


def test_the_error_that_was_seen_is_learned_and_a_few_runs_say_little() -> None:
    assert wrong_by(0.3).error == pytest.approx(0.3, rel=0.05)
    assert wrong_by(0.3, runs=1).error < 0.2


def test_estimates_that_tell_nothing_give_way_to_ages_but_not_those_of_other_programs() -> None:
    lengths = wrong_by(2.0)
    assert left_of(400.0, lengths) == (lengths.expected_s(1, 0.0), False)
    assert left_of(400.0, wrong_by(2.0, program="another")) == (600.0, True)
    assert left_of(400.0, wrong_by(2.0, runs=1))[1], "one run says little"
    job = Job("a", Request(), "default", 0.0, 0.0, "", Estimate(service_s=1_000.0))
    assert expected_left(job, 0.0, lengths, as_told=True) == (1_000.0, True), "who is late is told by the estimate"


@pytest.mark.parametrize("done_s", [0.0, 500.0, 900.0, 1_000.0])
def test_what_is_left_is_the_mean_over_those_that_come_as_far(done_s: float) -> None:
    lengths, chance = wrong_by(0.3), random.Random(2)
    truths = [1_000.0 * math.exp(chance.gauss(0.0, lengths.error)) for _ in range(50_000)]
    assert lengths.left_s(1_000.0, done_s) == pytest.approx(fmean(t - done_s for t in truths if t > done_s), rel=0.05)


@given(
    st.sampled_from([None, 1_000.0]),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.floats(0.0, 1e6),
)
def test_what_is_expected_changes_at_the_next_step_and_not_before(
    told_s: float | None, error: float, done_s: float
) -> None:
    lengths = wrong_by(error, runs=20)
    job = Job("a", Request(), "default", 0.0, 0.0, "", Estimate(service_s=told_s))

    def expected(seconds: float) -> tuple[float, bool]:
        job.done_s = job.attained_s = seconds
        return expected_left(job, 0.0, lengths)

    before = expected(done_s)
    assume(not before[1])
    step_s = next_step_s(job, 0.0, lengths)
    assert step_s > 0.0
    assert expected(done_s + 0.99 * step_s) == pytest.approx(before)
    assert expected(done_s + 1.01 * step_s + 1e-3)[0] != before[0] or done_s > 1e5


@given(st.floats(0.02, 0.59), st.floats(0.0, 1e7))
def test_something_finite_is_left_however_far_a_run_has_come(error: float, done_s: float) -> None:
    lengths = Lengths()
    lengths.error = error
    left_s, certain = left_of(done_s, lengths)
    assert 0.0 <= left_s < math.inf
    assert certain == (done_s <= 1_000.0)
