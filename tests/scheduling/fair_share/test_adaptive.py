"""Owners with shares under ``adaptive``: guarantees, lending, taking back, limits, and whose turn it is."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Quotas
from prefect_gpu.scheduling.model.instructions import Hold, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.model.shares import Share, Shares
from tests.scheduling.world import World, node

HOUR = 3600.0
GRACEFUL = Abilities(Preemption.GRACEFUL)


def pool(*named: Share, devices: int = 4, half_life_s: float = 24 * HOUR, **default: Any) -> World:
    shares = Shares(half_life_s, named, Share("", **default))
    return World(node("n", *[8] * devices), profile="adaptive", abilities=GRACEFUL, shares=shares)


def run(owner: str, *, gpus: int = 1, preemptible: bool = True, priority: int = 0) -> Request:
    return Request(gpus, preemptible=preemptible, owner=owner, priority=priority)


def starts(world: World, owner: str, count: int, first: int = 0, **asked: Any) -> list[str]:
    names = [f"{owner}{number}" for number in range(first, first + count)]
    for name in names:
        world.submit(name, request=run(owner, **asked), estimate=Estimate(HOUR, launching_s=10.0))
    return names


def stopped(world: World) -> None:
    for job in world.stopped:
        world.handle(ev.JobStopped(job))


def held(world: World, owner: str) -> int:
    return sum(len(place.split()) for job, place in world.places.items() if job.startswith(owner))


def reason(world: World, job: str) -> str:
    return [said.reason for said in world.instructions if isinstance(said, Hold) and said.job == job][-1]


def test_what_is_guaranteed_is_lent_and_given_back_at_once_last_borrowed_first() -> None:
    world = pool(Share("ada", guaranteed=2))
    for number in range(4):
        starts(world, "bob", 1, number)
        world.train(f"bob{number}")
        world.wait(100.0)
    assert held(world, "bob") == 4, "idle devices are lent"
    starts(world, "ada", 2)
    assert world.stopped == ["bob3", "bob2"]
    assert held(world, "ada") == 2 and held(world, "bob") == 2


def test_who_borrowed_last_gives_back_first_though_it_has_just_begun_and_others_have_not() -> None:
    world = pool(Share("ada", guaranteed=1), devices=2)
    for number in range(2):
        world.submit(f"bob{number}", request=run("bob"))  # nobody knows for how long
        world.train(f"bob{number}")
        world.wait(30.0 * (1 - number))
    starts(world, "ada", 1)
    assert world.stopped == ["bob1"]


def test_who_has_just_begun_makes_room_for_what_is_guaranteed() -> None:
    world = pool(Share("ada", guaranteed=4))
    starts(world, "bob", 4)
    starts(world, "ada", 4)
    assert held(world, "ada") == 4, "guarantees do not wait until others have paid back their launches"


def test_what_is_guaranteed_is_not_lent_to_runs_that_cannot_be_stopped() -> None:
    world = pool(Share("ada", guaranteed=3))
    starts(world, "bob", 4, preemptible=False)
    assert held(world, "bob") == 1
    assert world.held("bob3") == ["guaranteed"]
    assert "guaranteed to ada" in reason(world, "bob3") and "preemptible=True" in reason(world, "bob3")
    starts(world, "ada", 3, preemptible=False)
    assert held(world, "ada") == 3


def test_if_more_is_guaranteed_than_there_is_runs_that_cannot_be_stopped_have_a_part_of_it() -> None:
    """As while a node is away: nobody's runs started any more."""
    world = pool(Share("ada", guaranteed=2), Share("team", guaranteed=2), Share("bob", "team", guaranteed=1), devices=3)
    starts(world, "eve", 1, preemptible=False)
    starts(world, "ada", 3, preemptible=False)
    assert (held(world, "ada"), held(world, "eve")) == (2, 0), "the odd device is for who comes first"
    starts(world, "bob", 1, preemptible=False)
    assert held(world, "bob") == 1


def test_who_has_more_than_is_left_beside_guarantees_keeps_nobody_from_what_is_guaranteed_to_it() -> None:
    """As where the block is registered while runs train."""
    world = pool()
    starts(world, "bob", 3, preemptible=False)
    world.handle(ev.QuotasChanged(Quotas(shares=Shares(HOUR, (Share("ada", guaranteed=3),)))))
    starts(world, "bob", 1, 3, preemptible=False)
    starts(world, "ada", 1, preemptible=False)
    assert (held(world, "bob"), held(world, "ada")) == (3, 1)


def test_what_others_guarantees_never_leave_is_said_and_not_owed() -> None:
    world = pool(Share("ada", guaranteed=1), Share("bob"))
    starts(world, "bob", 1, gpus=4, preemptible=False)
    starts(world, "eve", 4)
    world.wait(HOUR)
    assert reason(world, "bob0") == (
        "1 of the pool's 4 devices is guaranteed to others, and lent only to runs that may be stopped, and this run "
        "needs 4: with preemptible=True it could start"
    )
    standing = world.scheduler.standing()
    assert standing is not None and standing.waits["bob"] == standing.owed_to("bob") == 0.0
    assert standing.part_owed("eve") == 1.0
    starts(world, "bob", 1, 1, gpus=4)
    standing = world.scheduler.standing()
    assert standing is not None and standing.waits["bob"] == 4.0, "it may have those that are lent"


def test_devices_are_divided_by_weight() -> None:
    world = pool(Share("ada", weight=2.0), devices=8)
    starts(world, "bob", 8)
    world.train(*list(world.places))
    world.wait(400.0)
    starts(world, "ada", 8)
    stopped(world)
    assert (held(world, "ada"), held(world, "bob")) == (5, 3)


@pytest.mark.parametrize(("length_s", "share"), [(HOUR / 6, 4), (25 * HOUR, 3)])
def test_short_runs_may_take_the_devices_of_long_ones_until_that_was_too_much(length_s: float, share: int) -> None:
    world = pool(devices=4)
    for number in range(4):
        world.submit(f"ada{number}", request=run("ada"), estimate=Estimate(50 * HOUR, launching_s=10.0))
    world.train(*list(world.places))
    world.wait(24 * HOUR)
    for number in range(60):
        for said in world.submit(f"bob{number}", request=run("bob"), estimate=Estimate(length_s, launching_s=10.0)):
            if isinstance(said, Preempt):
                world.handle(ev.JobStopped(said.job))
    assert held(world, "bob") == share, "it is owed two, and a third may make up for what it might have too little"
    lost_s = 0.0  # of ada, in device-seconds
    while held(world, "ada") < 2 and lost_s < 10 * HOUR:
        bobs = [job for job in world.places if job.startswith("bob")]
        world.train(*bobs)
        world.wait(length_s)
        lost_s += (2 - held(world, "ada")) * length_s
        world.end(*bobs)
        stopped(world)
    assert lost_s < 5 * HOUR, "4.5 % of what both have had is some three hours of a device"


def test_a_limit_is_never_exceeded_though_devices_are_free() -> None:
    world = pool(Share("team", limit=3), Share("ada", parent="team", limit=2), Share("bob", parent="team"))
    starts(world, "ada", 4)
    assert held(world, "ada") == 2
    assert world.held("ada3") == ["share-limit"] and "the limit of ada is 2 devices" in reason(world, "ada3")
    starts(world, "bob", 4)
    assert held(world, "bob") == 1 and "the limit of team is 3" in reason(world, "bob3")


def test_what_a_limit_never_allows_is_not_owed_and_others_owe_nothing_for_it() -> None:
    world = pool(Share("team"), Share("ada", parent="team"), limit=1)
    starts(world, "team", 1, gpus=2)
    starts(world, "ada", 4)
    world.wait(HOUR)
    assert reason(world, "team0") == "the limit of team itself is 1 device, and this run needs 2"
    standing = world.scheduler.standing()
    assert standing is not None and standing.waits["team"] == standing.owed_to("team") == 0.0
    assert standing.usage.owed.get("team", 0.0) == 0.0 and standing.part_owed("ada") == 1.0


def test_runs_that_cannot_be_stopped_start_by_turns() -> None:
    world = pool(devices=2)
    starts(world, "bob", 6, preemptible=False)
    world.wait(HOUR)
    starts(world, "ada", 2, preemptible=False)
    world.end("bob0")
    world.end("bob1")
    assert held(world, "ada") == 1 and held(world, "bob") == 1, "the first came to ada, and then each has its half"


def test_who_was_kept_waiting_catches_up() -> None:
    world = pool(devices=2, half_life_s=HOUR)
    starts(world, "bob", 2, preemptible=False)
    starts(world, "bob", 4, first=2)
    starts(world, "ada", 4)
    world.wait(HOUR)
    world.end("bob0", "bob1")
    assert held(world, "ada") == 2, "for an hour it was owed one device, and had none"


def test_a_waiting_run_is_told_whose_turn_it_is() -> None:
    world = pool(devices=2, half_life_s=HOUR)
    starts(world, "bob", 2, preemptible=False)
    starts(world, "ada", 1, preemptible=False)
    world.wait(60.0)
    starts(world, "bob", 1, first=2, preemptible=False)
    assert world.held("bob2") == ["turn"]
    assert "ada's turn: ada has had 0 % of " in reason(world, "bob2")
    assert "you (bob) have had 100 % of " in reason(world, "bob2")


def test_of_one_owner_higher_priority_goes_first_and_takes_nothing_from_others() -> None:
    world = pool(devices=4)
    low = starts(world, "bob", 4)
    starts(world, "ada", 4)
    assert held(world, "bob") == 4, "what is owed waits until others have paid back their launches"
    world.wait(400.0)
    stopped(world)
    world.train(*[job for job in world.places if job.startswith("ada")])
    assert held(world, "ada") == held(world, "bob") == 2
    world.wait(600.0)
    starts(world, "bob", 2, first=9, priority=5)
    assert {"bob9", "bob10"} <= set(world.places)
    assert held(world, "ada") == 2 and not set(low) & set(world.places)


def test_a_wide_run_comes_to_its_turn_among_many_small_ones() -> None:
    world = pool(devices=4, half_life_s=HOUR)
    starts(world, "bob", 40)
    starts(world, "ada", 1, gpus=4)
    for _ in range(600):
        world.train(*[job for job in world.places if world.state.jobs[job].trains_since is None])
        world.wait(60.0)
        stopped(world)
        if "ada0" in world.places:
            break
    assert "ada0" in world.places


def test_without_shares_priority_counts_within_a_queue() -> None:
    world = World(node("n", 8), profile="adaptive", abilities=GRACEFUL)
    world.submit("running", request=Request(), service_s=10.0)
    world.submit("short", request=Request(preemptible=True), service_s=1.0)
    world.submit("urgent", request=Request(preemptible=True, priority=1), service_s=1000.0)
    world.end("running")
    assert list(world.places) == ["urgent"]


def test_nobody_comes_to_hold_less_than_is_guaranteed_by_giving_back_a_run_that_holds_more() -> None:
    """It would have to be given the rest back again: two checkpoints, and a run that was stopped for nothing."""
    world = pool(Share("ada", weight=10.0), Share("bob", guaranteed=2), devices=7)
    starts(world, "cyd", 2, preemptible=False)
    starts(world, "bob", 1)
    starts(world, "bob", 1, first=1, gpus=2)
    starts(world, "ada", 1, gpus=2)
    world.train(*list(world.places))
    world.wait(HOUR / 4)
    world.submit("bob2", request=run("bob"), estimate=Estimate(4 * HOUR, launching_s=10.0))
    starts(world, "ada", 1, first=1, gpus=2)
    assert world.stopped == [] and held(world, "bob") == 3


@pytest.mark.parametrize("limit", [{"worker_limit": 1}, {"pool_paused": True}, {}])
def test_an_owner_that_can_be_given_nothing_now_has_its_turn_among_the_others_all_the_same(limit: Any) -> None:
    """It holds nothing, has had nothing, and what it waits for counts for nothing: of it, no more is known."""
    world = pool(devices=2)
    starts(world, "bob", 2)
    world.limit(shares=Shares(HOUR), **limit)
    starts(world, "eve", 1, gpus=1 if limit else 9)
    world.wait(1.0)
    assert world.held("eve0")[-1] == (world.held("eve0")[0]) != "failed"
    world.limit(shares=Shares(HOUR))
    world.end("bob0")
    assert ("eve0" in world.places) is bool(limit)


def test_who_becomes_due_has_a_turn_at_once_though_somebody_has_looked_at_those_who_wait_already() -> None:
    shares = Shares(HOUR)
    abilities = Abilities(Preemption.GRACEFUL, gates=True)
    world = World(node("n", 8, 8), profile="adaptive", abilities=abilities, shares=shares)
    for job in ("bob0", "bob1"):
        world.submit(job, request=run("bob", preemptible=False), estimate=Estimate(100.0, launching_s=10.0))
    world.train("bob0", "bob1")
    starts(world, "ada", 1, gpus=2)
    world.submit("eve0", request=run("eve"), due=world.now + 99.0)
    world.wait(99.0)
    assert world.held("eve0")[-1] == "turn"
