"""Who goes first, so that nobody ends much later than with its own part of the cluster."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.order.finish_time import LATE, LONG, Stay, ranked

seconds = st.floats(0, 1e7)


@st.composite
def clusters(draw: st.DrawFn) -> list[Stay]:
    """Jobs of any age, and with equal ones among them."""
    some = draw(
        st.lists(
            st.builds(Stay, st.just(""), st.sampled_from((1, 2, 4, 8)), seconds, seconds, seconds, st.floats(0.01, 1)),
            max_size=12,
        )
    )
    some += draw(st.lists(st.sampled_from(some), max_size=3)) if some else []
    return [replace(job, id=str(number)) for number, job in enumerate(some)]


def late(job: Stay) -> bool:
    return job.lateness() > LATE


def long(job: Stay, jobs: list[Stay], gpus: int) -> bool:
    return job.left_s > LONG * sum(other.left_s * other.gpus for other in jobs) / gpus


@given(clusters(), st.integers(1, 64))
def test_all_are_ranked_once_and_the_same_again(jobs: list[Stay], gpus: int) -> None:
    found = ranked(jobs, gpus)
    assert sorted(job.id for job in found) == sorted(job.id for job in jobs)
    assert found == ranked(jobs, gpus)


@given(clusters(), st.integers(1, 64))
def test_the_late_come_first_then_the_long_then_the_short(jobs: list[Stay], gpus: int) -> None:
    found = ranked(jobs, gpus)
    groups = [0 if late(job) else 1 if long(job, jobs, gpus) else 2 for job in found]
    assert groups == sorted(groups)
    parts = [[job for job, group in zip(found, groups, strict=True) if group == one] for one in range(3)]
    assert [job.lateness() for job in parts[0]] == sorted((job.lateness() for job in parts[0]), reverse=True)
    assert [job.left_s for job in parts[1]] == sorted((job.left_s for job in parts[1]), reverse=True)
    assert [job.left_s for job in parts[2]] == sorted(job.left_s for job in parts[2])


def test_nobody_is_late_who_has_just_come() -> None:
    assert Stay("a", 1, 0, 0, 3_600, 0.25).lateness() == 0.25
    assert Stay("a", 1, 7_200, 0, 3_600, 0.25).lateness() == 0.75
    assert Stay("a", 1, 7_200, 3_600, 3_600, 0.25).lateness() == pytest.approx(0.375)


@pytest.mark.parametrize(("age_s", "expected"), [(0.0, 0.0), (1.0, math.inf)])
def test_who_has_nothing_to_do_is_late_as_soon_as_it_waits(age_s: float, expected: float) -> None:
    assert Stay("a", 1, age_s, 0, 0).lateness() == expected


# GPUs, jobs, their order
ORDERS: dict[str, tuple[int, list[Stay], str]] = {
    "the shortest first": (1, [Stay("a", 1, 0, 0, 200, 0.3), Stay("b", 1, 0, 0, 100, 0.3)], "ba"),
    "equals as they are given": (1, [Stay("b", 1, 0, 0, 100, 0.3), Stay("a", 1, 0, 0, 100, 0.3)], "ba"),
    # 1,000 s of 1,200 on two GPUs, 600: it ends last in any case
    "who ends last in any case must not wait": (
        2,
        [Stay("a", 1, 0, 0, 100, 0.3), Stay("b", 1, 0, 0, 100, 0.3), Stay("long", 1, 0, 0, 1_000, 0.3)],
        "long,a,b",
    ),
    # 1,600 + 100 of 500 · 4: it would end at 0.85 of the time that it has
    "who is about to be late comes before": (
        2,
        [Stay("long", 1, 0, 0, 1_000, 0.25), Stay("late", 1, 1_600, 400, 100, 0.25)],
        "late,long",
    ),
    "the latest of the late ones first": (
        8,
        [Stay("a", 1, 900, 0, 100, 0.5), Stay("b", 1, 1_000, 0, 100, 0.5), Stay("c", 1, 0, 0, 10, 0.5)],
        "bac",
    ),
}


@pytest.mark.parametrize("case", ORDERS)
def test_order(case: str) -> None:
    gpus, jobs, expected = ORDERS[case]
    names = expected.split(",") if "," in expected else list(expected)
    assert [job.id for job in ranked(jobs, gpus)] == names
