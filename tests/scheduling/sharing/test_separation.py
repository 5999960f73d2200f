"""Pairs that were measured to hold each other up too much take turns, and are not brought together again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import SetShare
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.sharing.incompatible import Incompatible
from tests.scheduling.world import World, asks, node

SHARES = asks(gib=2, shares=True)
ABLE = Abilities(shares=True)


def two_together(abilities: Abilities = ABLE) -> World:
    """Runs a1 and b1, of programs a and b, train on one device."""
    world = World(node("n", 8), profile="adaptive", abilities=abilities)
    for program in "ab":
        world.submit(f"{program}1", request=replace(SHARES, kind=program))
        world.now += 1.0
    world.train("a1", "b1")
    return world


def measure(world: World, of_a: float, of_b: float) -> None:
    world.handle(ev.SlowdownMeasured("a1", of_a, "b"))
    world.handle(ev.SlowdownMeasured("b1", of_b, "a"))


def weights(world: World) -> list[tuple[str, float]]:
    return [(said.job, said.weight) for said in world.instructions if isinstance(said, SetShare)]


@pytest.mark.parametrize(
    ("of_a", "of_b", "said"),
    [
        (1.1, 1.1, []),
        (2.0, 2.0, []),
        (3.0, 1.5, []),
        (3.0, 3.0, [("b1", 0.0)]),
        (10.0, 1.5, [("b1", 0.0)]),
    ],
    ids=["hardly slower", "they take turns", "unfair, but nothing is lost", "both lose", "one is stalled"],
)
def test_the_younger_pauses_where_time_is_lost_to_being_together(
    of_a: float, of_b: float, said: list[tuple[str, float]]
) -> None:
    world = two_together()
    measure(world, of_a, of_b)
    assert weights(world) == said


@pytest.mark.parametrize("ending", ["it saves", "it ends", "it begins again"])
def test_it_trains_on_when_the_other_trains_no_more(ending: str) -> None:
    world = two_together()
    measure(world, 3.0, 3.0)
    match ending:
        case "it saves":
            world.handle(ev.PhaseEntered("a1", Status.SAVING))
        case "it ends":
            world.end("a1")
        case _:
            world.handle(ev.PhaseEntered("a1", Status.PREPARING))
    assert weights(world) == [("b1", 0.0), ("b1", 1.0)]


def test_one_that_was_stopped_while_it_paused_trains_when_it_is_back() -> None:
    world = World(node("n", 8), profile="adaptive", abilities=Abilities(Preemption.GRACEFUL, shares=True))
    for program in "ab":
        request = replace(SHARES, kind=program, preemptible=True)
        world.submit(f"{program}1", request=request, service_s=100_000.0)
        world.now += 1.0
    world.train("a1", "b1")
    measure(world, 3.0, 3.0)
    world.now += 1000.0
    world.submit("short", request=Request(preemptible=True), service_s=10.0)
    for job in world.stopped:
        world.handle(ev.JobStopped(job))
    world.train("short")
    world.end("short")
    world.train("a1")
    world.end("a1")
    assert world.launched == ["a1", "b1", "short", "a1", "b1"]
    world.train("b1")
    assert weights(world) == [("b1", 0.0), ("b1", 1.0)]


@pytest.mark.parametrize("converged", ["", "yield", "stop"])
def test_one_that_pauses_gets_no_share_for_what_its_loss_does(converged: str) -> None:
    """SpeCon's rule raises the shares of runs that have converged; "" is what `converged="ignore"` says."""
    world = World(node("n", 8), profile="adaptive", abilities=ABLE)
    for program in "ab":
        world.submit(f"{program}1", request=replace(SHARES, kind=program, converged=converged))
        world.now += 1.0
    world.train("a1", "b1")
    measure(world, 3.0, 3.0)
    for job in ("a1", "b1"):
        for look in range(8):
            world.now += 30.0
            world.handle(ev.LossReported(job, 0.1**look))
    assert [said for said in weights(world) if said[0] == "b1"] == [("b1", 0.0)]
    world.end("a1")
    assert weights(world)[-1] == ("b1", 1.0)


def test_when_the_paused_one_ends_nothing_more_is_said() -> None:
    world = two_together()
    measure(world, 3.0, 3.0)
    world.end("b1")
    assert weights(world) == [("b1", 0.0)]


def test_the_pair_of_programs_is_not_brought_together_again() -> None:
    world = two_together()
    measure(world, 3.0, 3.0)
    world.end("b1")
    world.submit("b2", request=replace(SHARES, kind="b"))
    world.submit("c1", request=replace(SHARES, kind="c"))
    assert world.launched == ["a1", "b1", "c1"]
    world.end("a1")
    assert "b2" in world.launched


def test_nothing_is_decided_on_half_a_pair_nor_where_nobody_says_beside_whom() -> None:
    world = two_together()
    world.handle(ev.SlowdownMeasured("a1", 9.0, "b"))
    world.handle(ev.SlowdownMeasured("b1", 9.0))
    assert weights(world) == []


def test_nobody_is_paused_where_shares_cannot_be_changed() -> None:
    world = two_together(Abilities())
    measure(world, 3.0, 3.0)
    assert weights(world) == []


def test_a_newcomer_beside_its_match_pauses_as_it_begins_to_train() -> None:
    world = two_together()
    world.handle(ev.PhaseEntered("b1", Status.PREPARING))
    measure(world, 3.0, 3.0)
    assert weights(world) == []
    world.train("b1")
    assert weights(world) == [("b1", 0.0)]


def test_a_pair_once_found_stays_apart_whatever_is_measured_later() -> None:
    apart = Incompatible()
    apart.learn("a", "a", 3.0)
    assert apart.are("a", "a")
    assert apart.learn("a", "a", 1.0)
