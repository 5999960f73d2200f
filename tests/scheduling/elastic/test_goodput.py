"""How many GPUs does each elastic job get on many nodes, and which?"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.elastic.goodput import Growing, envelope, place, sizes

NODES, PER_NODE = 4, 4
GPUS = NODES * PER_NODE
COUNTS = (1, 2, 3, 4, 8, 12, 16)


def job(name: str, work: float, *speeds: float, nodes: tuple[int, ...] = ()) -> Growing:
    """A job with these speeds on 1, 2, 3, 4, 8, ... GPUs."""
    return Growing(name, work, dict(zip(COUNTS, speeds, strict=False)), nodes)


@st.composite
def clusters(draw: st.DrawFn) -> list[Growing]:
    """Jobs with any speeds, some of which have GPUs: the places that they got a moment ago."""
    speed = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
    before = [
        Growing(str(number), draw(st.floats(0.0, 1e9)), dict(zip(COUNTS, draw(st.tuples(*[speed] * 7)), strict=True)))
        for number in range(draw(st.integers(0, 12)))
    ]
    ran = [one for one in before if draw(st.booleans())]
    where = place(ran, sizes(ran, GPUS), NODES, PER_NODE)
    return [Growing(one.id, one.work, one.speed, where.get(one.id, ())) for one in before]


@given(clusters())
def test_no_gpu_is_given_twice_and_nobody_gets_what_it_cannot_use(jobs: list[Growing]) -> None:
    wanted = sizes(jobs, GPUS)
    assert sum(wanted.values()) <= GPUS
    found = place(jobs, wanted, NODES, PER_NODE)
    by_id = {one.id: one for one in jobs}
    assert all(by_id[name].speed[len(where)] > 0 and len(where) <= wanted[name] for name, where in found.items())
    held = [node for where in found.values() for node in where]
    assert all(held.count(node) <= PER_NODE and 0 <= node < NODES for node in held)


@given(clusters())
def test_a_node_and_more_are_whole_nodes_and_less_is_on_one(jobs: list[Growing]) -> None:
    for where in place(jobs, sizes(jobs, GPUS), NODES, PER_NODE).values():
        counts = {where.count(node) for node in where}
        assert counts == {PER_NODE} if len(where) >= PER_NODE else len(set(where)) == 1
        assert list(where) == sorted(where)


@given(clusters())
def test_the_same_jobs_get_the_same_and_then_stay(jobs: list[Growing]) -> None:
    wanted = sizes(jobs, GPUS)
    found = place(jobs, wanted, NODES, PER_NODE)
    assert found == place(jobs, sizes(jobs, GPUS), NODES, PER_NODE)
    settled = [Growing(one.id, one.work, one.speed, found.get(one.id, ())) for one in jobs]
    placed = {name: len(where) for name, where in found.items()}
    assert place(settled, placed, NODES, PER_NODE) == found


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_the_envelope_is_concave_rises_and_is_nowhere_below(values: list[float]) -> None:
    points = list(enumerate(values, start=1))
    corners = [(0, 0.0), *envelope(points)]
    gains = [(high - low) / (more - less) for (less, low), (more, high) in pairwise(corners)]
    assert all(gain > 0 for gain in gains)
    assert all(later <= sooner * (1 + 1e-9) for sooner, later in pairwise(gains))
    assert {*corners[1:]} <= {*points}
    for x, value in points:
        below = next((pair for pair in pairwise(corners) if pair[0][0] <= x <= pair[1][0]), None)
        if below is None:
            assert value <= corners[-1][1]
            continue
        (less, low), (more, high) = below
        assert low + (high - low) * (x - less) / (more - less) >= value * (1 - 1e-9)


# jobs, GPUs, GPUs by job
SIZES: dict[str, tuple[list[Growing], int, dict[str, int]]] = {
    "a job alone gets all that make it faster": ([job("a", 1e6, 1, 2, 3, 4, 8)], 8, {"a": 8}),
    "a GPU that makes nobody faster stays idle": ([job("a", 1e6, 1, 2, 2, 2)], 4, {"a": 2}),
    "all get one before one gets all": ([job("a", 1e6, 1, 1.9), job("b", 1e6, 1, 1.9)], 2, {"a": 1, "b": 1}),
    "the shorter of two comes first": ([job("long", 1e6, 1), job("short", 1e3, 1)], 1, {"short": 1}),
    "who scales gets more": (
        [job("well", 1e6, 1, 2, 3, 4), job("badly", 1e6, 1, 1.1, 1.1, 1.1)],
        4,
        {"well": 3, "badly": 1},
    ),
    "a step over sizes that do not run is taken whole or not at all": ([job("a", 1e6, 1, 0, 0, 4)], 3, {"a": 1}),
    "a job that runs nowhere waits": ([job("a", 1e6, 0, 0), job("b", 1e6, 1)], 2, {"b": 1}),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes(case: str) -> None:
    jobs, gpus, expected = SIZES[case]
    assert sizes(jobs, gpus) == expected


def test_a_restart_is_worth_it_only_for_a_job_that_runs_on() -> None:
    """Twice as fast, for two minutes: with the seconds left, a restart pays off or it does not."""
    assert sizes([job("a", 1_000, 1, 2, nodes=(0,))], 2) == {"a": 2}
    assert sizes([job("a", 100, 1, 2, nodes=(0,))], 2) == {"a": 1}


def test_small_jobs_move_for_a_job_that_needs_whole_nodes_as_few_as_possible() -> None:
    two = {1: 1.0, 2: 2.0}
    jobs = [
        Growing("a", 1, two, (0,)),
        Growing("b", 1, two, (1, 1)),
        Growing("c", 1, two, (2, 2)),
        Growing("wide", 1, {8: 8.0}),
    ]
    found = place(jobs, {"a": 1, "b": 2, "c": 2, "wide": 8}, 4, 4)
    assert found == {"wide": (0,) * 4 + (3,) * 4, "a": (1,), "b": (1, 1), "c": (2, 2)}


def test_a_job_that_fits_on_no_node_gets_what_is_left_on_one() -> None:
    three = {1: 1.0, 3: 3.0}
    jobs = [Growing(name, 1, {**three, 2: 2.0}) for name in "abc"]
    assert place(jobs, {"a": 3, "b": 3, "c": 2}, 2, 4) == {"a": (0,) * 3, "b": (1,) * 3, "c": (0,)}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"a": 6}, "a wants 6 GPUs of nodes with 4: give whole nodes"),
        ({"a": 20}, "20 GPUs are wanted, and there are 16"),
    ],
)
def test_what_no_cluster_has_is_refused(wanted: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        place([job("a", 1, 1)], wanted, NODES, PER_NODE)
