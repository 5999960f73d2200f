"""What owners are owed, and what they have had: properties that hold whatever they are promised."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.fair_share.owed import claims, floors, owed, water_fill
from prefect_gpu.scheduling.fair_share.replay import Stay, replay
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.scheduling.fair_share.usage import Usage
from prefect_gpu.scheduling.model.shares import Share, Shares

OWNERS = ("ada", "bob", "cyd", "dan")
weights = st.sampled_from([0.5, 1.0, 2.0, 3.0])
limits = st.none() | st.integers(0, 12)


@st.composite
def promises(draw: Any) -> Shares:
    """Two groups and some owners, in one of them or in none; others are named nowhere."""
    named = [
        Share(name, "", draw(st.integers(0, 4)), draw(limits), draw(weights))
        for name in draw(st.sets(st.sampled_from(["red", "blue"])))
    ]
    groups = ["", *(share.name for share in named)]
    named += [
        Share(name, draw(st.sampled_from(groups)), draw(st.integers(0, 3)), draw(limits), draw(weights))
        for name in draw(st.sets(st.sampled_from(OWNERS)))
    ]
    return Shares(3600.0, tuple(named), Share("", limit=draw(limits), weight=draw(weights)))


wants = st.dictionaries(st.sampled_from(OWNERS), st.integers(0, 20).map(float))


@given(promises(), st.integers(0, 16), wants)
def test_all_devices_are_owed_to_somebody_as_long_as_somebody_may_use_them(
    shares: Shares, devices: int, asked: dict[str, float]
) -> None:
    tree = Tree(shares, asked)
    found, (most, _) = owed(tree, devices, asked), claims(tree, asked)
    top = tree.children[None]
    usable = sum(most[node] for node in top)
    assert sum(found[node] for node in top) == pytest.approx(min(devices, usable))
    for node, share in tree.share.items():
        assert 0 <= found[node] <= most[node] + 1e-9, "nobody is owed more than it can use"
        assert share.limit is None or found[node] <= share.limit + 1e-9
        members = tree.children.get(node, [])
        assert not members or found[node] == pytest.approx(sum(found[member] for member in members))


@given(promises(), st.integers(0, 16), wants)
def test_guarantees_come_first(shares: Shares, devices: int, asked: dict[str, float]) -> None:
    tree = Tree(shares, asked)
    found, least = owed(tree, devices, asked), floors(tree, asked)
    if sum(least[node] for node in tree.children[None]) <= devices:
        for node in tree.children[None]:
            assert found[node] >= least[node] - 1e-9
    for node in tree.children[None]:
        members = [tree.share[one].guaranteed for one in tree.children.get(node, [])]
        assert least[node] <= max(tree.share[node].guaranteed, sum(members)) + 1e-9, "no more than was promised"


@given(promises(), st.integers(1, 16), wants, st.sampled_from(OWNERS))
def test_who_asks_for_more_takes_nothing_from_those_who_keep_to_their_share(
    shares: Shares, devices: int, asked: dict[str, float], greedy: str
) -> None:
    """Nobody whose demand stays the same is owed less than its part of what it was owed with all asking for much."""
    tree = Tree(shares, OWNERS)
    much = owed(tree, devices, dict.fromkeys(OWNERS, 100.0))
    found = owed(tree, devices, {**asked, greedy: 100.0})
    for owner in OWNERS:
        leaf = tree.leaf[owner]
        enough = min(asked.get(owner, 0.0), much[leaf])
        alone = all(tree.share[node].guaranteed == 0 for node in tree.share)
        if owner != greedy and alone and not tree.children.keys() - {None}:
            assert found[leaf] >= enough - 1e-6, "and so nobody starves"


bounds = st.tuples(st.integers(0, 5), st.integers(0, 9), weights).map(
    lambda one: (float(min(one[:2])), float(max(one[:2])), one[2])
)


@given(st.lists(bounds, max_size=6), st.floats(0, 40))
def test_water_stands_at_one_level(some: list[tuple[float, float, float]], amount: float) -> None:
    parts = water_fill(some, amount)
    total = sum(parts)
    low, high = sum(one[0] for one in some), sum(one[1] for one in some)
    assert total == pytest.approx(min(amount, high)) or (low > amount and total == pytest.approx(amount))
    if low <= amount:
        level = max((part / one[2] for part, one in zip(parts, some, strict=True) if part > one[0] + 1e-9), default=0.0)
        for part, (floor, ceiling, weight) in zip(parts, some, strict=True):
            assert floor - 1e-9 <= part <= ceiling + 1e-9
            assert part == pytest.approx(ceiling) or part / weight >= level - 1e-6, "whoever could have more has it"


def test_a_long_time_at_once_is_the_same_as_in_small_parts() -> None:
    once, often = Usage(), Usage()
    for usage, moments in ((once, [0, 5000]), (often, range(0, 5001, 50))):
        for moment in moments:
            usage.pass_time({"ada": 3.0}, {"ada": 1.0, "bob": 2.0}, float(moment), 3600.0)
    assert once.had == pytest.approx(often.had) and once.owed == pytest.approx(often.owed)
    assert once.behind("bob") > 0 > once.behind("ada")


def test_after_a_half_life_what_was_had_counts_half() -> None:
    usage = Usage()
    usage.pass_time({}, {}, 0.0, 100.0)
    usage.pass_time({"ada": 1.0}, {}, 100.0, 100.0)
    had = usage.had["ada"]
    assert had == pytest.approx(100.0 / math.log(2) / 2)
    usage.pass_time({}, {}, 200.0, 100.0)
    assert usage.had["ada"] == pytest.approx(had / 2)
    usage.pass_time({"ada": 9.0}, {}, 150.0, 100.0)
    assert usage.had["ada"] == pytest.approx(had / 2), "time that goes backwards counts as none"


def test_what_is_counted_anew_from_the_history_is_what_was_counted_live() -> None:
    shares = Shares(1000.0, (Share("ada", weight=2.0),))
    stays = [Stay("ada", 2.0, 0.0, 100.0, 900.0), Stay("bob", 1.0, 50.0, 50.0), Stay("bob", 1.0, 300.0, None)]
    live = Usage()
    times = [0.0, 50.0, 100.0, 300.0, 900.0, 1200.0]
    for start, end in itertools.pairwise(times):
        live.pass_time({}, {}, start, 1000.0)
        holds = {"ada": 2.0 * (100 <= start < 900), "bob": 1.0 * (start >= 50)}
        asks = {"ada": 2.0 * (start < 900), "bob": 1.0 * (start >= 50) + 1.0 * (start >= 300)}
        tree = Tree(shares, ("ada", "bob"))
        due = owed(tree, 2, asks)
        live.pass_time(holds, {owner: due[tree.leaf[owner]] for owner in ("ada", "bob")}, end, 1000.0)
    again = replay(shares, 2, stays, 1200.0)
    assert again.had == pytest.approx(live.had) and again.owed == pytest.approx(live.owed)


def test_an_owner_named_like_a_group_is_a_member_of_it() -> None:
    shares = Shares(1000.0, (Share("red", limit=3), Share("ada", "red")))
    tree = Tree(shares, ("red", "ada", ""))
    assert list(tree.path("red")) == ["red/", "red"] and list(tree.path("")) == ["(nobody)"]
    assert owed(tree, 8, {"red": 5.0, "ada": 5.0, "": 9.0}) == {
        "red": 3.0, "red/": 1.5, "ada": 1.5, "(nobody)": 5.0,
    }  # fmt: skip
