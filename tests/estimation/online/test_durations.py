"""Durations learned from the jobs that have finished."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.estimation.online import durations
from prefect_gpu.estimation.online.durations import OnlineDurations
from prefect_gpu.simulation.traces import TraceJob, read_trace
from tests.components import traces_folder


def _job(
    model: str = "bert",
    gpus: int = 4,
    batch_size: int | None = 8,
    iterations: int | None = 1000,
    duration_s: float = 0.0,
) -> TraceJob:
    return TraceJob("any", 0.0, duration_s, gpus, model, batch_size, iterations)


def _learned(*finished: TraceJob) -> OnlineDurations:
    learned = OnlineDurations()
    for job in finished:
        learned.finished(job, job.duration_s)
    return learned


TEN_OF_EACH = [
    _job(model, gpus, batch_size, iterations, iterations * iteration_s)
    for model, gpus, batch_size, iteration_s in (
        ("bert", 4, 8, 0.2), ("bert", 4, 16, 0.3), ("bert", 1, 8, 0.1), ("vgg", 1, 8, 0.6),
    )
    for iterations in range(1000, 11_000, 1000)
]  # fmt: skip
RATES = "seconds per iteration of "
# job, expected seconds, how far off that may be, how many jobs it is from, what it is from
LEARNED = {
    "like others": (
        _job(iterations=500), 100.0, 0.01, 10, f"{RATES}10 finished jobs of model bert, 4 GPUs, batch size 8",
    ),
    "of another batch size": (_job(batch_size=32), 245.0, 0.05, 20, f"{RATES}20 finished jobs of model bert, 4 GPUs"),
    "on other GPUs": (_job(gpus=2), 182.0, 0.05, 30, f"{RATES}30 finished jobs of model bert"),
    "of another model": (_job("gpt"), 245.0, 0.05, 40, f"{RATES}40 finished jobs of any kind"),
    "without iterations": (
        _job(iterations=None), 906.0, 0.2, 10, "durations of 10 finished jobs of model bert, 4 GPUs, batch size 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("job, duration_s, off, jobs, basis", LEARNED.values(), ids=LEARNED)
def test_a_job_is_estimated_from_those_most_like_it(
    job: TraceJob, duration_s: float, off: float, jobs: int, basis: str
) -> None:
    estimate = _learned(*TEN_OF_EACH).estimate(job)
    assert estimate.duration_s == pytest.approx(duration_s, rel=off)
    assert (estimate.from_jobs, estimate.basis) == (jobs, basis)


def test_before_the_first_job_has_finished_the_estimate_is_a_wide_guess() -> None:
    learned = OnlineDurations(prior_s=600.0, prior_iteration_s=0.5)
    guess = learned.estimate(_job(iterations=None))
    assert dataclasses.astuple(guess)[:3] == pytest.approx((600.0, 6.0, 60_000.0))
    assert (guess.from_jobs, guess.basis) == (0, "no job has finished yet")
    assert learned.estimate(_job()).duration_s == pytest.approx(500.0)


def test_one_finished_job_says_much_about_the_next_like_it() -> None:
    learned = _learned(_job(duration_s=200.0))
    estimate = learned.estimate(_job(iterations=3000))
    assert estimate.duration_s == pytest.approx(600.0)
    assert estimate.basis == "seconds per iteration of 1 finished job of model bert, 4 GPUs, batch size 8"


def test_an_unnamed_model_is_a_group_like_any_other() -> None:
    learned = _learned(*[_job("", gpus, None, None, 60.0 * gpus) for gpus in (1, 2, 4, 8) for _ in range(20)])
    estimate = learned.estimate(_job("", 8, None, None))
    assert estimate.duration_s == pytest.approx(480.0, rel=0.1)
    assert estimate.basis == "durations of 20 finished jobs of an unnamed model, 8 GPUs"


def test_seconds_that_every_job_loses_hardly_touch_the_estimate_of_a_long_one() -> None:
    lost_s = 30.0
    short, long = _job(iterations=100, duration_s=20.0 + lost_s), _job(iterations=50_000, duration_s=10_000.0 + lost_s)
    estimate = _learned(*[short, long] * 10).estimate(_job(iterations=50_000))
    assert estimate.duration_s == pytest.approx(10_000.0, rel=0.1)  # 58 % too long if both counted alike


def test_durations_are_taken_where_iterations_say_less() -> None:
    chance = random.Random(3)
    finished = [
        _job(iterations=round(10 ** chance.uniform(3, 6)), duration_s=chance.uniform(50, 70)) for _ in range(50)
    ]
    estimate = _learned(*finished).estimate(_job(iterations=10**6))
    assert estimate.duration_s == pytest.approx(60.0, rel=0.1)
    assert estimate.basis.startswith("durations of 50 finished jobs")


def test_eight_of_ten_jobs_lie_between_low_and_high() -> None:
    chance = random.Random(4)
    seconds = [chance.lognormvariate(6, 1.2) for _ in range(2000)]
    learned = _learned(*[_job(iterations=None, duration_s=value) for value in seconds])
    estimate = learned.estimate(_job(iterations=None))
    inside = sum(estimate.low_s <= value <= estimate.high_s for value in seconds)
    assert inside / len(seconds) == pytest.approx(0.8, abs=0.03)


def test_what_has_been_asked_is_answered_afresh_when_another_job_has_finished() -> None:
    learned = _learned(_job(duration_s=200.0))
    before = learned.estimate(_job())
    for _ in range(20):
        learned.finished(_job(), 400.0)
    assert learned.estimate(_job()).duration_s > 1.5 * before.duration_s


@pytest.mark.parametrize("duration_s", [-1.0, math.nan, math.inf])
def test_a_duration_that_is_none_is_refused(duration_s: float) -> None:
    learned = OnlineDurations()
    with pytest.raises(ValueError, match=r"duration_s=.* is negative or not finite: give"):
        learned.finished(_job(), duration_s)
    assert learned.estimate(_job()).from_jobs == 0


@pytest.mark.parametrize("name", ["prior_s", "prior_iteration_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_that_is_no_time_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* is not positive and finite: give"):
        OnlineDurations(**{name: value})


JOBS = st.builds(
    _job,
    model=st.sampled_from(["", "bert", "vgg"]),
    gpus=st.sampled_from([1, 2, 8]),
    batch_size=st.sampled_from([None, 8, 16]),
    iterations=st.none() | st.integers(0, 10**7) | st.just(10**400),
    duration_s=st.floats(0, 1e300),
)


@given(st.lists(JOBS, max_size=20), JOBS)
def test_an_estimate_is_positive_and_finite_whatever_was_learned(finished: list[TraceJob], job: TraceJob) -> None:
    estimate = _learned(*finished).estimate(job)
    assert 0 < estimate.low_s <= estimate.duration_s <= estimate.high_s < math.inf
    assert 0 <= estimate.from_jobs <= len(finished)
    assert (estimate.from_jobs == 0) == (not finished)


@given(st.lists(JOBS, min_size=1, max_size=20), JOBS, st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_finish_does_not_matter(
    finished: list[TraceJob], job: TraceJob, chance: random.Random
) -> None:
    shuffled = finished.copy()
    chance.shuffle(shuffled)
    here, there = _learned(*finished).estimate(job), _learned(*shuffled).estimate(job)
    assert dataclasses.astuple(here)[:3] == pytest.approx(dataclasses.astuple(there)[:3], rel=1e-6)
    assert (here.from_jobs, here.basis) == (there.from_jobs, there.basis)


@given(st.lists(JOBS, max_size=10), st.lists(JOBS, min_size=1, max_size=5))
def test_asking_changes_nothing(finished: list[TraceJob], asked: list[TraceJob]) -> None:
    learned, silent = OnlineDurations(), OnlineDurations()
    for job in finished:
        silent.finished(job, job.duration_s)
        for other in asked:
            learned.estimate(other)
        learned.finished(job, job.duration_s)
    assert [learned.estimate(job) for job in asked] == [silent.estimate(job) for job in reversed(asked)][::-1]


@given(st.lists(JOBS, max_size=10), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_job_of_more_iterations_is_never_expected_to_end_sooner(
    finished: list[TraceJob], fewer: int, further: int
) -> None:
    learned = _learned(*finished)
    shorter, longer = (learned.estimate(_job(iterations=count)) for count in (fewer, fewer + further))
    assert shorter.duration_s <= longer.duration_s and shorter.basis == longer.basis


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "MOST_GROUPS", 5)
    learned = OnlineDurations()
    for index in range(50):
        learned.estimate(_job(str(index)))
    assert len(learned._known) <= 5


def _errors(jobs: Iterable[TraceJob]) -> list[float]:
    """Relative errors of the estimates made at submission, but for guesses, when every job runs at once and alone."""
    learned, running, errors = OnlineDurations(), list[tuple[float, str, TraceJob]](), []
    for job in jobs:
        while running and running[0][0] <= job.submit_s:
            done = heapq.heappop(running)[2]
            learned.finished(done, done.duration_s)
        estimate = learned.estimate(job)
        if estimate.from_jobs:
            errors.append(abs(estimate.duration_s / job.duration_s - 1))
        heapq.heappush(running, (job.submit_s + job.duration_s, job.job_id, job))
    return sorted(errors)


# Relative errors that half, 90 % and 95 % of the estimates stay below. Measured for trace1, trace2 and trace3:
# half below 1.9e-11, 2.3e-13, 1.2e-10; 90 % below 1.7e-8, 2.7e-10, 6.7e-7; 95 % below 5.7e-6, 9.6e-9, 8.9e-5.
BOUNDS = (1e-9, 1e-5, 1e-3)


@pytest.mark.needs("traces")
@pytest.mark.parametrize("trace", ["trace1", "trace2", "trace3"])
def test_jobs_of_a_published_trace_are_estimated_well_once_any_has_finished(trace: str) -> None:
    errors = _errors(read_trace(traces_folder() / "Rivendile-Muri" / "trace-data" / f"{trace}.csv"))
    found = [errors[int(part * len(errors))] for part in (0.5, 0.9, 0.95)]
    assert all(error <= bound for error, bound in zip(found, BOUNDS, strict=True)), found
