"""Compositions of jobs on groups of nodes: which there are, what work costs, and what is chosen."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.deepshare.compositions import Chooser, Compositions, TooMany, Wide
from tests.support import examples

SIZES = (2, 4, 8)


@st.composite
def matrices(draw: st.DrawFn, most: int = 4) -> tuple[list[int], np.ndarray]:
    """Sizes of some classes, and how they suffer from each other."""
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=most))
    row = st.lists(st.floats(0.35, 1.0), min_size=len(sizes), max_size=len(sizes))
    return sizes, np.array(draw(st.lists(row, min_size=len(sizes), max_size=len(sizes))))


def by_hand(sizes: list[int], ratios: np.ndarray, capacity: int) -> dict[tuple[int, ...], list[float]]:
    """All compositions, by the plain definition."""
    found = {}
    for count in range(1, capacity // min(sizes) + 1):
        for some in combinations_with_replacement(range(len(sizes)), count):
            if sum(sizes[one] for one in some) <= capacity:
                found[some] = [
                    min((ratios[one, other] for at, other in enumerate(some) if at != own), default=1.0)
                    for own, one in enumerate(some)
                ]
    return found


@settings(deadline=None, max_examples=examples(0.3))
@given(matrices(3))
def test_all_compositions_are_there_and_the_worst_neighbour_counts(world: tuple[list[int], np.ndarray]) -> None:
    sizes, ratios = world
    built = Compositions(sizes, ratios, 12)
    expected = by_hand(sizes, ratios, 12)
    assert len(built.members) == len(expected)
    for members, found in zip(built.members, built.ratios, strict=True):
        real = tuple(int(one) for one in members if one < len(sizes))
        assert found[: len(real)].tolist() == pytest.approx(expected[real])


@settings(deadline=None, max_examples=examples(0.3))
@given(matrices(), st.data())
def test_at_the_prices_no_composition_is_worth_more_than_its_time(
    world: tuple[list[int], np.ndarray], data: st.DataObject
) -> None:
    sizes, ratios = world
    work_s = np.array([data.draw(st.floats(0.0, 1e5).filter(lambda x: x == 0 or x > 1)) for _ in sizes])
    built = Compositions(sizes, ratios, 16)
    prices = built.prices(work_s)
    assert (prices >= 0).all()
    assert not prices[work_s == 0].any()
    assert (built.rates @ prices).max() <= 1 + 1e-6
    alone_s = sum(work / (16 // size) for work, size in zip(work_s, sizes, strict=True))
    assert prices @ work_s >= alone_s * (1 - 1e-6), "no plan is faster than one without contention"


def test_work_whose_good_neighbours_are_scarce_costs_more() -> None:
    loud_and_quiet = np.array([[0.4, 1.0], [1.0, 1.0]])
    built = Compositions([8, 8], loud_and_quiet, 16)
    plenty, scarce = built.prices(np.array([100.0, 300.0])), built.prices(np.array([300.0, 100.0]))
    assert plenty.tolist() == pytest.approx([0.5, 0.5])
    assert scarce[0] == pytest.approx(1.0), "the last loud one might as well be alone"


def test_loud_jobs_are_brought_together_with_quiet_ones() -> None:
    built = Compositions([8, 8], np.array([[0.4, 1.0], [1.0, 1.0]]), 16)
    chosen = Chooser(built, np.ones((2, 2)), 2, cost=0.0, least_ratio=0.0).choose()
    assert [sorted(one) for one in chosen.groups] in ([[0, 1], [0, 1]], [[1, 1], [0]])
    weights = np.array([[1.5, 1.5], [1.0, 1.0]])
    chosen = Chooser(built, weights, 2, cost=0.0, least_ratio=0.0).choose()
    assert [sorted(one) for one in chosen.groups] == [[0, 1], [0, 1]]


def test_a_job_that_is_faster_on_all_nodes_is_spread_over_them() -> None:
    built = Compositions([8], np.ones((1, 1)), 16)
    ones = np.ones((1, 1))
    wide = Wide([0], np.array([1.5]), ones, ones, ones)
    chosen = Chooser(built, np.ones((1, 2)), 2, cost=0.0, least_ratio=0.0, wide=wide).choose()
    assert (chosen.wide, chosen.groups) == ((0, 0), ((), ()))


def test_nobody_is_made_slower_than_allowed() -> None:
    built = Compositions([8], np.array([[0.5]]), 16)
    chosen = Chooser(built, np.ones((1, 4)), 2, cost=0.0, least_ratio=0.6).choose()
    assert chosen.groups == ((0,), (0,))


def test_no_job_runs_twice() -> None:
    built = Compositions([2, 4], np.full((2, 2), 0.9), 16)
    chosen = Chooser(built, np.array([[1.0] * 3, [1.0, 1.0, -np.inf]]), 2, cost=0.1, least_ratio=0.0).choose()
    members = [one for group in chosen.groups for one in group]
    assert (members.count(0), members.count(1)) == (3, 2)


def test_too_many_compositions_and_jobs_without_devices_are_refused() -> None:
    with pytest.raises(TooMany, match="20,000"):
        Compositions([2] * 12, np.ones((12, 12)), 16)
    with pytest.raises(ValueError, match=r"sizes is \[0\]"):
        Compositions([0], np.ones((1, 1)), 16)
