"""Where do runs go once all of them have converged?"""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.specon.rebalance import rebalance
from prefect_gpu.scheduling.sharing.convergence import Category, Watched


def converged(name: str, host: str, at: float, rebalanced: bool = False) -> Watched:
    return Watched(name, host, Category.CONVERGED, at, 0.0 if rebalanced else -math.inf)


def on(worker: str, **marked: float) -> list[Watched]:
    """Converged jobs on a worker, with the time at which each was marked."""
    return [converged(name, worker, at) for name, at in marked.items()]


BALANCE = {
    # The paper's own example: of four converged jobs on two workers the first worker's have ended.
    "an idle worker takes the job that converged last": (
        ["w1", "w2"],
        on("w2", c3=50, c4=70),
        [("c4", "w2", "w1")],
    ),
    "an idle worker takes as many as the balance factor": (
        ["w1", "w2"],
        on("w2", a=1, b=2, c=3, d=4, e=5),
        [("e", "w2", "w1"), ("d", "w2", "w1")],
    ),
    "a worker's only job is not moved to an idle one": (
        ["w1", "w2", "w3"],
        on("w2", last=99) + on("w3", a=1, b=2, c=3, d=4, e=5),
        [("e", "w3", "w1"), ("d", "w3", "w1")],
    ),
    "with fewer jobs than workers nobody moves": (
        ["w1", "w2", "w3"],
        on("w1", a=1, b=2),
        [],
    ),
    "without an idle worker one below the factor takes up to one less than it": (
        ["w1", "w2"],
        on("w1", z=1) + on("w2", a=1, b=2, c=3, d=4, e=5, f=6, g=7),  # factor 4: w1 takes up to 3
        [("g", "w2", "w1"), ("f", "w2", "w1")],
    ),
    "a small imbalance is left alone": (
        ["w1", "w2"],
        on("w1", z=1) + on("w2", a=1, b=2, c=3),  # factor 2, and 1 is not fewer than 1
        [],
    ),
    "a job that was rebalanced before stays": (
        ["w1", "w2"],
        [*on("w2", c3=50), converged("c4", "w2", 70, rebalanced=True)],
        [("c3", "w2", "w1")],
    ),
    "without jobs nothing happens": (["w1", "w2"], [], []),
    "without workers nothing happens": ([], [], []),
}


@pytest.mark.parametrize("case", BALANCE)
def test_rebalancing(case: str) -> None:
    workers, jobs, expected = BALANCE[case]
    assert [(move.job, move.source, move.target) for move in rebalance(workers, jobs, 100.0)] == expected


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
    jobs = [converged(f"j{index}", f"w{worker}", at, done) for index, (worker, at, done) in enumerate(places)]
    moves = rebalance(workers, jobs, 100.0)
    load = Counter(dict.fromkeys(workers, 0)) + Counter(job.host for job in jobs)
    after = load + Counter(move.target for move in moves)
    after.subtract(move.source for move in moves)
    by_id = {job.id: job for job in jobs}
    assert len({move.job for move in moves}) == len(moves)
    assert all(by_id[move.job].host == move.source != move.target for move in moves)
    assert all(by_id[move.job].evened_at == -math.inf for move in moves)
    if moves:
        assert max(after.values()) <= max(load.values())
        assert sum(count**2 for count in after.values()) < sum(count**2 for count in load.values())
    # Doing it again, with those moved marked, finds nothing that would move them back.
    moved = {move.job: move.target for move in moves}
    again = [converged(job.id, moved.get(job.id, job.host), job.marked_at, True) for job in jobs]
    assert rebalance(workers, again, 100.0) == []


def test_nothing_happens_while_a_run_still_learns() -> None:
    learns = Watched("a", "w2", Category.WATCHING, 1.0)
    assert rebalance(["w1", "w2"], [learns, *on("w2", b=2)], 100.0) == []
