"""The set of jobs worth most that fills the GPUs, and the order that makes it come true."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.papers.muri.knapsack import best_set, rank

powers = st.sampled_from([1, 2, 4, 8, 16, 32])
times = st.floats(0.0, 1e7)


def placed(order: list[int], gpus: list[int], node_gpus: list[int]) -> set[int]:
    """Which jobs start when GPUs are offered in this order, each job on the first node that fits or on whole ones."""
    free, started = list(node_gpus), set()
    widest = max(node_gpus, default=0)
    for job in order:
        if gpus[job] <= widest:
            nodes = [node for node, left in enumerate(free) if left >= gpus[job]][:1]
            taken = gpus[job]
        else:
            wanted = -(-gpus[job] // widest)
            nodes = [node for node, left in enumerate(free) if left == widest][:wanted]
            nodes, taken = (nodes if len(nodes) == wanted else []), widest
        for node in nodes:
            free[node] -= taken
        if nodes:
            started.add(job)
    return started


@pytest.mark.parametrize(
    ("case", "gpus", "remaining_s", "node_gpus", "expected"),
    [
        ("a lone small job gives way to one that uses both GPUs", [1, 2], [10, 12], [2], {1}),
        ("two small jobs fill the node and are shorter", [1, 2, 1], [10, 12, 10], [2], {0, 2}),
        ("a much shorter job goes first although a GPU idles", [1, 2], [10, 1000], [2], {0}),
        ("five short jobs do not keep a wide one out", [8] * 5 + [32], [90] * 4 + [100, 60], [8] * 8, {0, 1, 2, 3, 5}),
        ("a wide job takes whole nodes, the small one shares", [16, 1, 4], [50, 50, 50], [8, 8, 8], {0, 1, 2}),
        ("a job wider than the cluster is passed over", [32, 8], [1, 100], [8, 8], {1}),
        ("three of eight are offered four and leave one", [3, 3, 1, 1], [5, 5, 9, 9], [8], {0, 1, 2, 3}),
        ("six of six count as the largest block", [6, 1], [5, 5], [6], {0}),
        ("nodes that give nothing count for nothing", [1, 1], [5, 6], [0, 1], {0}),
    ],
)
def test_the_jobs_that_start(case, gpus, remaining_s, node_gpus, expected):
    assert placed(rank(gpus, remaining_s, node_gpus), gpus, node_gpus) == expected, case


def test_equal_jobs_start_in_the_order_given():
    assert rank([1] * 5, [7.0] * 5, [2]) == [0, 1, 2, 3, 4]


@given(jobs=st.lists(st.tuples(powers, st.floats(0.1, 10.0)), max_size=9), nodes=st.integers(1, 5))
def test_no_set_that_fits_is_worth_more(jobs, nodes):
    gpus, value = [g for g, _ in jobs], [v for _, v in jobs]
    chosen = best_set(np.array(gpus, dtype=np.int64), np.array(value), np.full(nodes, 8))
    assert len(set(chosen.tolist())) == len(chosen)
    assert sum(gpus[job] for job in chosen) <= 8 * nodes
    best = max(
        sum(value[job] for job in some)
        for count in range(len(jobs) + 1)
        for some in combinations(range(len(jobs)), count)
        if sum(gpus[job] for job in some) <= 8 * nodes
    )
    assert sum(value[job] for job in chosen) == pytest.approx(best)


@given(jobs=st.lists(st.tuples(powers, times), max_size=40), nodes=st.integers(1, 9))
def test_the_chosen_set_runs_when_offered_first(jobs, nodes):
    gpus, seconds = [g for g, _ in jobs], [s for _, s in jobs]
    work = np.array(gpus) * np.maximum(seconds, 1.0)
    chosen = set(best_set(np.array(gpus, dtype=np.int64), np.array(gpus) * work**-0.6, np.full(nodes, 8)).tolist())
    order = rank(gpus, seconds, [8] * nodes)
    assert set(order[: len(chosen)]) == chosen
    assert chosen <= placed(order, gpus, [8] * nodes)


@given(
    jobs=st.lists(st.tuples(st.integers(1, 70), times), max_size=40),
    node_gpus=st.lists(st.integers(0, 12), max_size=8),
    emphasis=st.floats(0, 1),
)
def test_every_job_is_offered_once_and_twice_the_same(jobs, node_gpus, emphasis):
    gpus, seconds = [g for g, _ in jobs], [s for _, s in jobs]
    order = rank(gpus, seconds, node_gpus, emphasis=emphasis)
    assert sorted(order) == list(range(len(jobs)))
    assert order == rank(gpus, seconds, node_gpus, emphasis=emphasis)


@given(jobs=st.lists(st.tuples(powers, times), min_size=1, max_size=30))
def test_what_fits_together_runs_together(jobs):
    gpus, seconds = [g for g, _ in jobs], [s for _, s in jobs]
    nodes = -(-sum(gpus) // 8)
    assert len(placed(rank(gpus, seconds, [8] * nodes), gpus, [8] * nodes)) == len(jobs)


@pytest.mark.parametrize(
    ("gpus", "remaining_s", "message"),
    [
        ([1, 2], [1.0], "2 GPU counts but 1 remaining times"),
        ([0], [1.0], "gpus is 0"),
        ([1], [-1.0], "remaining_s"),
        ([1], [float("nan")], "remaining_s"),
        ([1], [float("inf")], "remaining_s"),
    ],
)
def test_bad_jobs_are_named(gpus, remaining_s, message):
    with pytest.raises(ValueError, match=message):
        rank(gpus, remaining_s, [8])


def test_an_emphasis_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"emphasis is 1\.5"):
        rank([1], [1.0], [8], emphasis=1.5)
