"""How owners stand, in rows and in words."""

from __future__ import annotations

from prefect_gpu.scheduling.fair_share.table import ShareRow, table
from prefect_gpu.scheduling.model.shares import Share, Shares
from tests.scheduling.fair_share.test_adaptive import HOUR, pool, reason, starts
from tests.scheduling.world import World


def rows(world: World) -> dict[str, ShareRow]:
    standing = world.scheduler.standing()
    assert standing is not None
    return {row.name: row for row in table(standing)}


def test_groups_stand_before_their_members_with_all_that_these_have() -> None:
    world = pool(Share("team", guaranteed=2, limit=3), Share("ada", "team"), Share("eve", "team"), devices=4)
    starts(world, "ada", 4)
    world.wait(100.0)
    found = rows(world)
    assert [(row.name, row.depth, row.is_group) for row in found.values()] == [
        ("team", 0, True), ("ada", 1, False), ("eve", 1, False),
    ]  # fmt: skip
    assert (found["team"].holds, found["ada"].holds, found["ada"].waits) == (3.0, 3.0, 1.0)
    assert found["team"].had_part == found["ada"].had_part == 1.0
    assert found["team"].expects == "nothing more: its limit of 3 is reached"


def test_what_is_lent_and_borrowed_and_what_may_be_expected() -> None:
    world = pool(Share("ada", guaranteed=2), devices=4)
    starts(world, "bob", 3, preemptible=False)
    starts(world, "bob", 2, first=3)
    found = rows(world)
    assert found["bob"].holds == 4.0 and found["bob"].borrowed == 0.0, "nobody asks for what it uses"
    assert found["ada"].lent == 2.0 and found["ada"].expects == ""
    world.wait(100.0)
    starts(world, "ada", 3)
    found = rows(world)
    assert found["ada"].holds == 2.0 and found["ada"].lent == 0.0
    assert found["ada"].expects == "holds its share; more when others leave some"


def test_who_is_owed_nothing_is_not_said_to_hold_a_share() -> None:
    world = pool(Share("ada", guaranteed=4), devices=4)
    starts(world, "ada", 4)
    starts(world, "bob", 1)
    assert rows(world)["bob"].expects == "what others leave: it is owed none now"
    assert "its owner is owed none now, and gets what others leave" in reason(world, "bob0")


def test_an_owner_that_is_named_like_a_group_is_told_apart_from_it() -> None:
    world = pool(Share("team", limit=3), Share("ada", "team"), devices=4)
    starts(world, "team", 1)
    assert list(rows(world)) == ["team", "ada", "team itself"]


def test_what_is_guaranteed_comes_at_the_next_checkpoint_of_those_who_have_it() -> None:
    world = pool(devices=4)
    starts(world, "bob", 4, preemptible=False)
    world.limit(shares=Shares(HOUR, (Share("ada", guaranteed=2),)))
    starts(world, "ada", 1)
    assert rows(world)["ada"].expects == "1 more at the next checkpoint: guaranteed"


def test_everything_is_finite_before_anything_has_happened() -> None:
    world = pool(Share("ada", guaranteed=9), devices=4)
    row = rows(world)["ada"]
    assert (row.had_part, row.owed_part, row.holds, row.lent) == (0.0, 0.0, 0.0, 0.0)
