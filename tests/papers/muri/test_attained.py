"""Without durations: how long jobs of a kind have lasted says how long one still needs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.muri.attained import AttainedService

powers = st.sampled_from([1, 2, 4, 8, 16, 32])
times = st.floats(0.0, 1e8)


def learned(*ended: tuple[int, float, int]) -> AttainedService:
    """A policy that has seen (GPUs, seconds, how many) jobs end."""
    service = AttainedService()
    for gpus, seconds, count in ended:
        for _ in range(count):
            service.finished(gpus, seconds)
    return service


@pytest.mark.parametrize(
    ("case", "ended", "gpus", "attained_s", "expected"),
    [
        ("nothing is known: the youngest first", [], [1, 1, 1], [9000.0, 0.0, 700.0], [1, 2, 0]),
        ("nothing is known: of equals the first", [], [1, 1, 1], [0.0, 0.0, 0.0], [0, 1, 2]),
        ("between the same limits the one served longer goes on", [], [1, 1], [10.0, 25.0], [1, 0]),
        ("short kinds go before long ones", [(1, 40_000.0, 20), (8, 30.0, 20)], [1, 8], [0.0, 0.0], [1, 0]),
        ("all last two hours: the oldest first", [(1, 7200.0, 50)], [1, 1, 1], [0.0, 7000.0, 3000.0], [1, 2, 0]),
    ],
)
def test_who_is_offered_gpus_first(case, ended, gpus, attained_s, expected):
    node = 8 if 8 in gpus else 1
    assert learned(*ended).rank(gpus, attained_s, [node]) == expected, case


def test_before_anything_has_ended_an_older_job_is_expected_to_last_longer():
    ages = [0.0, 50.0, 100.0, 1000.0, 20_000.0, 3e5, 1e7]
    estimates = [learned().remaining_s([4], [age])[0] for age in ages]
    assert estimates == sorted(estimates)
    assert estimates[-1] > 1000 * estimates[0]


def test_a_kind_without_endings_leans_on_all_jobs():
    service = learned((1, 100.0, 200))
    assert service.remaining_s([8], [0.0])[0] < learned().remaining_s([8], [0.0])[0] * 1.5
    assert service.remaining_s([1], [0.0])[0] < service.remaining_s([1], [5000.0])[0]


def test_jobs_that_outlive_their_kind_are_evidence():
    service = learned((1, 100.0, 3))
    alone = service.remaining_s([1], [0.0])[0]
    among_old = service.remaining_s([1] * 50, [0.0] + [100_000.0] * 49)[0]
    assert among_old > alone


def test_the_next_limit_lies_ahead_until_there_is_none():
    service = AttainedService()
    seconds, limits = 0.0, 0
    while seconds < math.inf:
        assert service.next_limit_s(seconds) > seconds
        seconds, limits = service.next_limit_s(seconds), limits + 1
    assert limits < 60


@given(
    ended=st.lists(st.tuples(powers, times, st.integers(1, 3)), max_size=10),
    jobs=st.lists(st.tuples(st.integers(1, 70), st.floats(0.0, 1e12)), max_size=30),
    node_gpus=st.lists(st.integers(0, 12), max_size=6),
)
def test_every_job_is_offered_once_and_no_estimate_is_beyond_numbers(ended, jobs, node_gpus):
    gpus, seconds = [g for g, _ in jobs], [s for _, s in jobs]
    service = learned(*ended)
    order = service.rank(gpus, seconds, node_gpus)
    assert sorted(order) == list(range(len(jobs)))
    assert all(0 < estimate < math.inf for estimate in service.remaining_s(gpus, seconds))
    assert order == learned(*reversed(ended)).rank(gpus, seconds, node_gpus)


@pytest.mark.parametrize(
    ("gpus", "seconds", "message"),
    [
        ([1, 2], [1.0], "2 GPU counts but 1 times"),
        ([0], [1.0], "gpus is 0"),
        ([1], [-1.0], "time of service"),
        ([1], [math.nan], "time of service"),
        ([1], [math.inf], "time of service"),
    ],
)
def test_bad_jobs_are_named(gpus, seconds, message):
    with pytest.raises(ValueError, match=message):
        AttainedService().rank(gpus, seconds, [8])


def test_a_bad_ending_is_named():
    with pytest.raises(ValueError, match="gpus is 0"):
        AttainedService().finished(0, 1.0)
    with pytest.raises(ValueError, match="time of service"):
        AttainedService().finished(1, math.nan)
