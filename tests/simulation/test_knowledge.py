"""What a simulated scheduler is told of durations."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.simulation.knowledge import Exact, Learned, Nothing
from prefect_gpu.simulation.traces import TraceJob


def job(name: str, model: str = "bert", gpus: int = 1) -> TraceJob:
    return TraceJob(name, 0.0, 1.0, gpus, model)


def test_exact_is_the_truth() -> None:
    assert Exact().submitted("a", job("a"), 42.0) == 42.0
    assert Exact().finished("a", 42.0) == []


def test_errors_are_around_the_truth_and_stay_the_same() -> None:
    told = [Exact(0.5, seed=1).submitted(str(n), job(str(n)), 100.0) or 0.0 for n in range(300)]
    assert statistics.median(told) == pytest.approx(100.0, rel=0.2)
    assert told[7] == Exact(0.5, seed=1).submitted("7", job("7"), 100.0)
    assert told[7] != Exact(0.5, seed=2).submitted("7", job("7"), 100.0)


@pytest.mark.parametrize("error", [-0.1, float("nan"), float("inf")])
def test_an_error_that_is_none(error: float) -> None:
    with pytest.raises(ValueError, match=r"error=.* is negative or not finite"):
        Exact(error)


def test_nothing_is_nothing() -> None:
    assert Nothing().submitted("a", job("a"), 42.0) is None


def test_estimates_come_from_jobs_that_ended_before() -> None:
    learned = Learned()
    first = learned.submitted("a", job("a"), 100.0)
    assert learned.submitted("b", job("b"), 999.0) == first  # nothing has ended yet, so the truth cannot show
    learned.finished("a", 100.0)
    assert learned.submitted("c", job("c"), 999.0) == pytest.approx(100.0)


def test_only_jobs_of_the_kind_that_ended_are_told_anew() -> None:
    learned = Learned()
    for name, model in (("a", "bert"), ("b", "bert"), ("c", "vgg16")):
        learned.submitted(name, job(name, model), 1.0)
    learned.submitted("wide", job("wide", "bert", gpus=4), 1.0)
    assert [name for name, _ in learned.finished("a", 100.0)] == ["b"]


def test_the_oldest_estimates_are_renewed_first_and_only_so_many() -> None:
    learned = Learned(most=2)
    for name in "abcdef":
        learned.submitted(name, job(name), 1.0)
    assert [name for name, _ in learned.finished("a", 100.0)] == ["b", "c"]
    assert [name for name, _ in learned.finished("b", 100.0)] == ["d", "e"]
    assert [name for name, _ in learned.finished("c", 100.0)] == ["f", "d"]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_nobody_is_told_anything_about_a_job_that_has_ended(steps: list[tuple[bool, int]]) -> None:
    learned, alive = Learned(most=3), set()
    for submits, number in steps:
        name = str(number)
        if submits:
            learned.submitted(name, job(name, model=f"m{number % 2}"), 1.0)
            alive.add(name)
        else:
            renewed = learned.finished(name, 10.0)
            alive.discard(name)
            assert {other for other, _ in renewed} <= alive
            assert len(renewed) <= 3
            assert all(seconds > 0 for _, seconds in renewed)
