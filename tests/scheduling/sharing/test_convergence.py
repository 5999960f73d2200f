"""Is a run still learning fast, and where should one that is not go?"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.sharing.convergence import (
    Category,
    Converged,
    Counts,
    GrowthWatch,
    Move,
    choose_host,
    level,
    rebalance,
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


def on(worker: str, **marked: float) -> list[Converged]:
    """Converged jobs on a worker, with the time at which each was marked."""
    return [Converged(name, worker, at) for name, at in marked.items()]


BALANCE = {
    # The paper's own example: of four converged jobs on two workers the first worker's have ended.
    "an idle worker takes the job that converged last": (
        ["w1", "w2"],
        on("w2", c3=50, c4=70),
        [Move("c4", "w2", "w1")],
    ),
    "an idle worker takes as many as the balance factor": (
        ["w1", "w2"],
        on("w2", a=1, b=2, c=3, d=4, e=5),
        [Move("e", "w2", "w1"), Move("d", "w2", "w1")],
    ),
    "a worker's only job is not moved to an idle one": (
        ["w1", "w2", "w3"],
        on("w2", last=99) + on("w3", a=1, b=2, c=3, d=4, e=5),
        [Move("e", "w3", "w1"), Move("d", "w3", "w1")],
    ),
    "with fewer jobs than workers nobody moves": (
        ["w1", "w2", "w3"],
        on("w1", a=1, b=2),
        [],
    ),
    "without an idle worker one below the factor takes up to one less than it": (
        ["w1", "w2"],
        on("w1", z=1) + on("w2", a=1, b=2, c=3, d=4, e=5, f=6, g=7),  # factor 4: w1 takes up to 3
        [Move("g", "w2", "w1"), Move("f", "w2", "w1")],
    ),
    "a small imbalance is left alone": (
        ["w1", "w2"],
        on("w1", z=1) + on("w2", a=1, b=2, c=3),  # factor 2, and 1 is not fewer than 1
        [],
    ),
    "a job that was rebalanced before stays": (
        ["w1", "w2"],
        [*on("w2", c3=50), Converged("c4", "w2", 70, rebalanced=True)],
        [Move("c3", "w2", "w1")],
    ),
    "without jobs nothing happens": (["w1", "w2"], [], []),
    "without workers nothing happens": ([], [], []),
}


@pytest.mark.parametrize("case", BALANCE)
def test_rebalancing(case: str) -> None:
    workers, jobs, expected = BALANCE[case]
    assert rebalance(workers, jobs, 100.0) == expected


workers_and_jobs = st.integers(1, 6).flatmap(
    lambda number: st.tuples(
        st.just([f"w{index}" for index in range(number)]),
        st.lists(st.tuples(st.integers(0, number - 1), st.floats(0, 100), st.booleans()), max_size=30),
    )
)


@given(workers_and_jobs)
def test_rebalancing_moves_each_job_once_at_most_and_never_makes_the_fullest_fuller(
    case: tuple[list[str], list[tuple[int, float, bool]]],
) -> None:
    workers, places = case
    jobs = [Converged(f"j{index}", f"w{worker}", at, done) for index, (worker, at, done) in enumerate(places)]
    moves = rebalance(workers, jobs, 100.0)
    load = Counter(dict.fromkeys(workers, 0)) + Counter(job.worker for job in jobs)
    after = load + Counter(move.target for move in moves)
    after.subtract(move.source for move in moves)
    by_id = {job.id: job for job in jobs}
    assert len({move.job for move in moves}) == len(moves)
    assert all(by_id[move.job].worker == move.source != move.target for move in moves)
    assert not any(by_id[move.job].rebalanced for move in moves)
    if moves:
        assert max(after.values()) <= max(load.values())
        assert sum(count**2 for count in after.values()) < sum(count**2 for count in load.values())
    # Doing it again, with those moved marked, finds nothing that would move them back.
    moved = {move.job: move.target for move in moves}
    again = [Converged(job.id, moved.get(job.id, job.worker), job.marked_at, True) for job in jobs]
    assert rebalance(workers, again, 100.0) == []


# jobs by worker, movable in order, moves
LEVELLED = {
    "an idle worker takes from one with two": ({"v": ["a", "b"], "w": []}, ["b", "a"], [("b", "v", "w")]),
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
def test_workers_are_levelled(case: str) -> None:
    on, movable, expected = LEVELLED[case]
    assert level(on, movable) == [Move(*move) for move in expected]
