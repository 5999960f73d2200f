"""Is a run still learning fast, and where should one that is not go?"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.sharing.convergence import (
    Category,
    Counts,
    GrowthWatch,
    Watched,
    choose_host,
    level,
)

PC, WC, CC = Category.PROGRESSING, Category.WATCHING, Category.CONVERGED


def watch(values: list[float], every_s: float = 30.0) -> tuple[GrowthWatch, list[Category]]:
    """A watch that was told these values at equal distances, and the category after each."""
    watched = GrowthWatch()
    return watched, [watched.observe(number * every_s, value) for number, value in enumerate(values)]


# The first two values span the range from 1 to 0, so that each later change is the growth itself.
CATEGORIES: dict[str, tuple[list[float], list[Category]]] = {
    "a run that improves is progressing": (
        [1.0, 0.0, 0.1, 0.2, 0.3],
        [PC, PC, PC, PC, PC],
    ),
    "two looks of ever smaller growth below the threshold lead over watching to converged": (
        [1.0, 0.0, 0.008, 0.012],
        [PC, PC, WC, CC],
    ),
    "growth below the threshold that does not shrink changes nothing": (
        [1.0, 0.0, 0.004, 0.010, 0.018],
        [PC, PC, WC, WC, WC],
    ),
    "a converged run stays converged while its growth shrinks": (
        [1.0, 0.0, 0.008, 0.012, 0.014, 0.015],
        [PC, PC, WC, CC, CC, CC],
    ),
    "a watched run that speeds up is progressing again": (
        [1.0, 0.0, 0.008, 0.1],
        [PC, PC, WC, PC],
    ),
    "a converged run that speeds up is progressing again": (
        [1.0, 0.0, 0.008, 0.012, 0.1],
        [PC, PC, WC, CC, PC],
    ),
    "growth that shrinks but is above the threshold is progress": (
        [1.0, 0.0, 0.5, 0.9, 0.95],
        [PC, PC, PC, PC, PC],
    ),
    "a run that stands still from the start never slows down": (
        [1.0, 1.0, 1.0, 1.0],
        [PC, PC, PC, PC],
    ),
}


@pytest.mark.parametrize("case", CATEGORIES)
def test_categories(case: str) -> None:
    values, expected = CATEGORIES[case]
    assert watch(values)[1] == expected


@pytest.mark.parametrize("case", CATEGORIES)
@pytest.mark.parametrize("scale", [1e-6, 250.0, -1.0, -3e9])
def test_categories_do_not_depend_on_the_scale_or_direction_of_the_value(case: str, scale: float) -> None:
    values, expected = CATEGORIES[case]
    assert watch([scale * value for value in values])[1] == expected


def test_an_accuracy_that_saturates_converges_as_a_loss_does() -> None:
    accuracy = [0.95 * (1 - math.exp(-number / 4)) for number in range(40)]
    loss = [2.3 * math.exp(-number / 4) + 0.05 for number in range(40)]
    assert watch(accuracy)[0].category is CC
    assert watch(loss)[0].category is CC


def test_noise_within_an_interval_is_averaged_out() -> None:
    noise = random.Random(1)
    watched = GrowthWatch()
    for second in range(3000):
        watched.observe(float(second), 2 * math.exp(-second / 200) + 0.3 + noise.gauss(0, 0.03))
    assert watched.category is CC


def test_a_run_is_looked_at_once_per_interval() -> None:
    values = [1.0, 0.0, 0.008, 0.012]
    assert watch(values, every_s=5.0)[1] == [PC] * 4


def test_an_interval_without_a_report_is_waited_out() -> None:
    watched, _ = watch([1.0, 0.5, 0.3], every_s=600.0)
    assert watched.category is PC
    assert watched.growth == pytest.approx(0.2 / 0.7)


def test_late_and_absurd_values_change_nothing() -> None:
    plain, _ = watch([1.0, 0.0, 0.008])
    disturbed = GrowthWatch()
    for number, value in enumerate([1.0, 0.0, 0.008]):
        disturbed.observe(number * 30.0, value)
        disturbed.observe(number * 30.0, math.nan)
        disturbed.observe(number * 30.0, -math.inf)
        disturbed.observe(number * 30.0 - 10, 1e9)
        disturbed.observe(math.nan, 1e9)
    assert (disturbed.category, disturbed.growth) == (plain.category, plain.growth)


def test_a_run_asks_to_move_only_once_it_stayed_converged() -> None:
    watched, _ = watch([1.0, 0.0, 0.008, 0.012])
    assert watched.category is CC
    assert not watched.asks_reallocation(2, 0)
    watched.observe(120.0, 0.014)
    assert watched.asks_reallocation(2, 0)
    watched.observe(150.0, 0.018)  # jitter
    assert not watched.asks_reallocation(2, 0)


def test_a_run_asks_to_move_only_if_more_than_one_other_still_learns() -> None:
    watched, _ = watch([1.0, 0.0, 0.008, 0.012, 0.014])
    asked = {counts: watched.asks_reallocation(*counts) for counts in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]}
    assert asked == {(0, 0): False, (1, 0): False, (0, 1): False, (1, 1): True, (0, 2): True}


def test_a_job_is_decided_about_once_and_then_watched_no_more() -> None:
    watched, _ = watch([1.0, 0.0, 0.008, 0.012, 0.014])
    assert watched.marked_at == watched.converged_at == 90.0
    watched.migrated_at = 130.0
    assert watched.marked_at == 130.0
    assert not watched.asks_reallocation(5, 5)
    assert watched.observe(150.0, 99.0) is CC


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(-1e9, 1e9).map(lambda value: round(value, 3))), max_size=60),
    st.integers(-20, 20),
)
def test_whatever_is_reported_a_step_goes_down_one_category_at_most(
    reports: list[tuple[float, float]], power: int
) -> None:
    watched, scaled = GrowthWatch(), GrowthWatch()
    order = [PC, WC, CC]
    now, before = 0.0, PC
    for wait_s, value in reports:
        now += wait_s
        category = watched.observe(now, value)
        assert order.index(category) <= order.index(before) + 1
        assert (category is CC) == (watched.converged_at is not None)
        assert scaled.observe(now, value * 2.0**power) is category  # a power of two scales exactly
        before = category


def counts(**workers: tuple[int, int, int]) -> dict[str, Counts]:
    """Jobs per worker as PC, WC, CC."""
    return {worker: Counts(*numbers) for worker, numbers in workers.items()}


def test_scores_weigh_progress_twice_as_much_as_convergence() -> None:
    assert Counts(1, 0, 0).score == 2
    assert Counts(0, 1, 0).score == 1.5
    assert Counts(0, 0, 1).score == 1
    assert Counts(2, 1, 3).score == 8.5


HOSTS = {
    "the worker of least score takes the job": (
        counts(a=(2, 0, 1), b=(1, 1, 0), c=(0, 0, 2)),  # 5, 3.5, 2
        {"a": 0.9, "b": 0.1, "c": 0.8},
        "c",
    ),
    "its own worker keeps it when it is among the least": (
        counts(a=(1, 0, 1), b=(0, 0, 3), c=(2, 2, 0)),  # 3, 3, 7
        {"a": 0.9, "b": 0.1, "c": 0.1},
        "a",
    ),
    "of several the one with the lowest use takes it": (
        counts(a=(2, 0, 1), b=(0, 2, 0), c=(1, 0, 1)),  # 5, 3, 3
        {"a": 0.0, "b": 0.7, "c": 0.4},
        "c",
    ),
    "of several with equal use the first takes it": (
        counts(a=(2, 0, 1), b=(0, 2, 0), c=(1, 0, 1)),
        {"a": 0.0, "b": 0.4, "c": 0.4},
        "b",
    ),
    "more converged jobs can weigh less than fewer that progress": (
        counts(a=(3, 0, 1), b=(2, 0, 0), c=(0, 0, 3)),  # 7, 4, 3
        {},
        "c",
    ),
}


@pytest.mark.parametrize("case", HOSTS)
def test_choosing_a_host(case: str) -> None:
    workers, use, expected = HOSTS[case]
    use = use or dict.fromkeys(workers, 0.0)
    assert choose_host("a", workers, use) == expected


# runs by host, those that may move, moves
LEVELLED = {
    "an idle worker takes from one with two": ({"v": ["a", "b"], "w": []}, ["b"], [("b", "v", "w")]),
    "one more is not worth a move": ({"v": ["a", "b"], "w": ["c"]}, ["a", "b", "c"], []),
    "the fullest gives first": (
        {"u": ["a", "b"], "v": ["c", "d", "e", "f"], "w": []},
        ["a", "b", "c", "d", "e", "f"],
        [("c", "v", "w"), ("d", "v", "w")],
    ),
    "who may not move stays": ({"v": ["a", "b", "c"], "w": []}, [], []),
    "there is no worker": ({}, ["a"], []),
}


@pytest.mark.parametrize("case", LEVELLED)
def test_hosts_are_levelled(case: str) -> None:
    on, movable, expected = LEVELLED[case]
    runs = [Watched(run, host, PC, 0.0, movable=run in movable) for host, there in on.items() for run in there]
    assert [(move.job, move.source, move.target) for move in level(list(on), runs, 100.0)] == expected


def test_those_that_learn_least_move_first_and_not_again_at_once() -> None:
    runs = [Watched("a", "v", PC, 0.0), Watched("b", "v", CC, 0.0), Watched("c", "v", CC, 0.0, evened_at=80.0)]
    assert [move.job for move in level(["v", "w"], runs, 100.0)] == ["b"]
    assert [move.job for move in level(["v", "w"], runs[::2], 100.0)] == ["a"]
