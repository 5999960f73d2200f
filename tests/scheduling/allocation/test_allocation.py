"""Who runs and who makes room: jobs in a row, and where each of them ends up."""

from __future__ import annotations

import math
from typing import Any

from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.jobs import Request, Status
from prefect_gpu.scheduling.order.orders import Fifo
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.world import World, asks, node

CAREFUL = Abilities(Preemption.GRACEFUL)


def stops(gpus: int = 1, **more: Any) -> Request:
    """A request of a job that can be stopped."""
    return Request(gpus=gpus, preemptible=True, **more)


def easy() -> Profile:
    return Profile("easy", Fifo(), allocation=(Backfill(reserve_first=True),), patience_s=math.inf)


# -- backfilling ------------------------------------------------------------------------------------------------------


def two_running(world: World) -> None:
    """``a`` is expected to end after 100 s and ``b`` after 300 s; then a gang of two waits."""
    world.submit("a", service_s=100.0)
    world.submit("b", service_s=300.0)
    world.train("a", "b")
    world.submit("gang", request=asks(2), service_s=50.0)


def test_a_short_job_passes_a_gang_that_it_does_not_delay() -> None:
    world = World(node("n", 8, 8, 8), profile=easy())
    two_running(world)
    world.submit("short", service_s=90.0)
    assert "short" in world.launched, "the gang starts when a ends, after 100 s"


def test_a_long_job_does_not_pass_a_gang_that_it_would_delay() -> None:
    world = World(node("n", 8, 8, 8), profile=easy())
    two_running(world)
    world.submit("long", service_s=110.0)
    assert "long" not in world.launched and world.held("long") == ["reserved"]


def test_a_job_of_unknown_length_does_not_pass_a_gang() -> None:
    world = World(node("n", 8, 8, 8), profile=easy())
    two_running(world)
    world.submit("unknown")
    assert world.held("unknown") == ["reserved"]


def test_a_long_job_may_use_a_node_that_the_gang_does_not_wait_for() -> None:
    world = World(node("n", 8, 8, 8), profile=easy())
    two_running(world)
    world.handle(ev.NodesChanged((node("n", 8, 8, 8), node("m", 8))))
    world.submit("long", service_s=1000.0)
    assert world.places["long"] == "m0"


def test_a_short_job_passes_a_long_one_of_its_own_kind_that_has_to_wait() -> None:
    world = World(node("n", 8, 8, 8), profile=easy())
    two_running(world)
    world.submit("long", service_s=110.0)
    world.submit("short", service_s=90.0)
    assert "short" in world.launched and "long" not in world.launched


def test_strict_order_lets_nobody_pass() -> None:
    world = World(node("n", 8, 8), profile="strict-fifo")
    world.submit("a")
    world.submit("gang", request=asks(2))
    world.submit("small")
    assert world.launched == ["a"] and world.held("small") == ["order"]
    assert world.reason("small") == "run gang comes first"


# -- making room where stopping costs something -----------------------------------------------------------------------


def test_the_job_that_is_last_in_the_order_makes_room() -> None:
    world = World(node("n", 8, 8), profile="srtf", abilities=CAREFUL)
    world.submit("long", request=stops(), service_s=500.0)
    world.submit("longer", request=stops(), service_s=900.0)
    world.train("long", "longer")
    world.submit("short", request=stops(), service_s=10.0)
    assert world.stopped == ["longer"] and "short" in world.places
    assert world.state.jobs["longer"].status is Status.STOPPING, "it waits again when it has stopped"
    world.handle(ev.JobStopped("longer"))
    assert world.state.jobs["longer"].status is Status.WAITING


def test_a_job_makes_no_room_for_one_that_comes_later() -> None:
    world = World(node("n", 8), profile="srtf", abilities=CAREFUL)
    world.submit("short", request=stops(), service_s=10.0)
    world.submit("long", request=stops(), service_s=500.0)
    assert world.stopped == []


def test_a_job_that_cannot_be_stopped_makes_no_room() -> None:
    world = World(node("n", 8), profile="srtf", abilities=CAREFUL)
    world.submit("long", service_s=500.0)
    world.submit("short", service_s=10.0)
    assert world.stopped == [] and world.launched == ["long"]


def test_nobody_makes_room_where_nobody_can_be_stopped() -> None:
    world = World(node("n", 8), profile="srtf")
    world.submit("long", request=stops(), service_s=500.0)
    world.submit("short", request=stops(), service_s=10.0)
    assert world.stopped == []


def test_no_more_jobs_make_room_than_a_gang_needs() -> None:
    world = World(node("n", 8, 8, 8), profile="srtf", abilities=CAREFUL)
    world.submit("long", "longer", "longest", request=stops(), service_s=500.0)
    world.submit("pair", request=stops(2), service_s=10.0)
    assert len(world.stopped) == 2


def test_a_gang_with_several_parts_on_a_node_makes_room_once() -> None:
    world = World(node("n", 8, 8, 8, 8), profile="srtf", abilities=CAREFUL)
    world.submit("gang", request=stops(2, workers=2), service_s=500.0)
    world.submit("wide", request=stops(4), service_s=10.0)
    assert world.stopped == ["gang"]


def test_of_two_nodes_the_one_with_the_last_jobs_makes_room() -> None:
    world = World(node("n", 8, 8), node("m", 8, 8), profile="srtf", abilities=CAREFUL)
    world.submit("a", "b", request=stops(), service_s=100.0)
    world.submit("y", "z", request=stops(), service_s=900.0)
    assert {world.places[job][0] for job in "yz"} == {"m"}
    world.submit("pair", request=stops(2), service_s=10.0)
    assert sorted(world.stopped) == ["y", "z"] and world.places["pair"] == "m0 m1"


def test_a_job_larger_than_a_node_gets_whole_nodes() -> None:
    world = World(node("n", 8, 8), node("m", 8, 8), node("o", 8, 8), profile="srtf", abilities=CAREFUL)
    world.submit("a", "b", "c", request=stops(), service_s=100.0)
    world.submit("wide", request=stops(4, spans=True), service_s=10.0)
    assert len(world.places["wide"].split()) == 4
    assert len({place[0] for place in world.places["wide"].split()}) == 2


def test_what_is_stopped_may_carry_on_elsewhere_with_the_progress_it_made() -> None:
    world = World(node("n", 8), profile="srtf", abilities=CAREFUL)
    world.submit("long", request=stops(), service_s=500.0)
    world.train("long")
    world.wait(100.0)
    world.submit("short", request=stops(), service_s=10.0)
    world.handle(ev.JobStopped("long"))
    assert world.state.jobs["long"].remaining_s(world.now) == 400.0
    world.end("short")
    assert world.launched == ["long", "short", "long"]
