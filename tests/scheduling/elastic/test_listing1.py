"""How many GPUs does each elastic job get, and when is a resize worth it?"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.elastic.listing1 import ElasticJob, assign, worth_applying


def job(name: str, *rates: float, least: int = 1, most: int | None = None) -> ElasticJob:
    """A job with these steps per second on 1, 2, ... GPUs."""
    return ElasticJob(name, least, most or len(rates), (0.0, *rates))


# Two jobs on six GPUs, whose numbers are easy: `steep` gains 4 steps/s per GPU up to 24; `flat` starts at 6 and
# gains 1 per GPU up to 11.
STEEP = job("steep", 4, 8, 12, 16, 20, 24)
FLAT = job("flat", 6, 7, 8, 9, 10, 11)

# jobs, GPUs, GPUs by job
TABLE: dict[str, tuple[list[ElasticJob], int, dict[str, int]]] = {
    "a job alone gets all that make it faster": ([STEEP], 6, {"steep": 6}),
    "each GPU goes to the job that gains most by it": ([STEEP, FLAT], 6, {"steep": 5, "flat": 1}),
    "minimums come first, in order, and the rest wait": (
        [job("a", 0, 5, 6, least=2), job("b", 0, 0, 9, least=3), job("c", 1)],
        3,
        {"a": 2, "c": 1},
    ),
    "a job that fits only with none left waits": ([job("a", 1), job("b", 1)], 1, {"a": 1}),
    "nobody gets more than its maximum": ([job("a", 1, 2, 3, 4, most=2)], 4, {"a": 2}),
    "a GPU that slows a job down stays idle": ([job("a", 5, 4, 3)], 3, {"a": 1}),
    "a GPU that helps nobody stays idle": ([job("a", 5, 5, 5)], 3, {"a": 1}),
    "a count that does not run is stepped over": ([job("a", 5, 0, 0, 9)], 4, {"a": 4}),
    "a step that does not fit any more is left out": ([job("a", 5, 0, 0, 9)], 3, {"a": 1}),
    "steps of several GPUs compare by their gain per GPU": (
        [job("a", 1, 0, 6), job("b", 1, 3, 5, 7)],  # a gains 5 on two GPUs; b gains 2 on each
        4,
        {"a": 3, "b": 1},
    ),
    "the smallest count that runs is the minimum": ([job("a", 0, 0, 4)], 3, {"a": 3}),
    "a job that runs on no count waits": ([job("a", 0, 0), job("b", 1)], 2, {"b": 1}),
    "of equal steps the first job's is taken": ([job("a", 1, 2), job("b", 1, 2)], 3, {"a": 2, "b": 1}),
    "without GPUs all wait": ([STEEP], 0, {}),
    "without jobs nothing is handed out": ([], 6, {}),
}


@pytest.mark.parametrize("case", TABLE)
def test_assignments(case: str) -> None:
    jobs, gpus, expected = TABLE[case]
    assert assign(jobs, gpus) == expected


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: assign([STEEP], -1), "gpus is -1"),
        (lambda: assign([STEEP, STEEP], 3), "give each job once"),
    ],
)
def test_senseless_input_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


rates = st.lists(st.floats(0, 100).map(lambda rate: rate if rate > 0.01 else 0.0), min_size=1, max_size=8)


@st.composite
def job_lists(draw: st.DrawFn) -> list[ElasticJob]:
    """Up to six jobs with any throughput, growing or not, with holes or without."""
    jobs = []
    for number, found in enumerate(draw(st.lists(rates, max_size=6))):
        least = draw(st.integers(1, len(found)))
        jobs.append(ElasticJob(f"j{number}", least, draw(st.integers(least, 10)), (0.0, *found)))
    return jobs


@given(job_lists(), st.integers(0, 20))
def test_never_more_gpus_than_there_are_a_minimum_or_nothing_and_nobody_slowed_down(
    jobs: list[ElasticJob], gpus: int
) -> None:
    plan = assign(jobs, gpus)
    by_id = {job.id: job for job in jobs}
    assert sum(plan.values()) <= gpus
    assert plan == assign(jobs, gpus)
    for name, count in plan.items():
        found = by_id[name]
        assert found.minimum <= count <= found.maximum
        assert found.f(count) > 0
        # No smaller count would be as fast: no GPU is wasted and none slows the job down.
        assert all(found.f(fewer) < found.f(count) for fewer in range(found.minimum, count))
    left = gpus - sum(plan.values())
    for waiting in jobs:
        if waiting.id not in plan:
            runs = [count for count in range(waiting.minimum, waiting.maximum + 1) if waiting.f(count) > 0]
            taken = sum(min(c for c in range(1, 21) if by_id[name].f(c) > 0) for name in plan)
            assert not runs or runs[0] > gpus - taken
    for name, count in plan.items():  # and what stays idle would help nobody
        found = by_id[name]
        assert all(found.f(count + more) <= found.f(count) for more in range(1, left + 1))


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=3), st.integers(1, 8))
def test_for_diminishing_returns_the_greedy_sum_is_the_best_sum(gains: list[list[int]], gpus: int) -> None:
    jobs = []
    for number, steps in enumerate(gains):
        total, found = 0.0, [0.0]
        for step in sorted(steps, reverse=True):
            total += step
            found.append(total)
        jobs.append(ElasticJob(f"j{number}", 1, len(steps), tuple(found)))
    plan = assign(jobs, gpus)
    admitted = [job for job in jobs if job.id in plan]
    best = max(
        sum(job.f(count) for job, count in zip(admitted, counts, strict=True))
        for counts in product(*(range(1, job.maximum + 1) for job in admitted))
        if sum(counts) <= gpus
    )
    assert sum(job.f(plan[job.id]) for job in admitted) == best


A = ElasticJob("a", 1, 4, (0, 2.0, 3.0, 3.5, 3.9))
B = ElasticJob("b", 1, 4, (0, 1.0, 1.9, 2.7, 3.4))

# before, after, worth the restarts
WORTH = {
    "a rise by one step per second is worth it": ({"a": 1}, {"a": 2}, True),
    "a smaller rise is not": ({"a": 2}, {"a": 4}, False),
    "a sum that falls is not": ({"a": 2, "b": 2}, {"a": 1, "b": 3}, False),
    "a waiting job that starts is always worth it": ({"a": 4}, {"a": 1, "b": 1}, True),
    "nothing new is not worth it": ({"a": 2, "b": 2}, {"a": 2, "b": 2}, False),
    "a job that was listed with no GPU counts as waiting": ({"a": 2, "b": 0}, {"a": 2, "b": 1}, True),
    "a job that would stop lowers the sum": ({"a": 2, "b": 1}, {"a": 3}, False),
}


@pytest.mark.parametrize("case", WORTH)
def test_what_is_worth_a_restart(case: str) -> None:
    before, after, expected = WORTH[case]
    assert worth_applying([A, B], before, after) is expected
