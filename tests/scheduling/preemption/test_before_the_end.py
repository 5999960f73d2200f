"""Nodes and devices that leave service: who still starts there, and who is asked to save and leave, and when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prefect_gpu.scheduling.forecast import forecast
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.record import decode, encode
from prefect_gpu.scheduling.state.endings import UNKNOWN_CHECKPOINT_S
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World as Simulated
from tests.scheduling.world import World, asks, node

STOPS = Abilities(Preemption.GRACEFUL)
SAVES_10_S = Estimate(service_s=10_000.0, launching_s=5.0, checkpoint_s=10.0)  # it is asked 22 s before the end
MAY_STOP = Request(preemptible=True)


def ending(one: Node, at: float, why: str = "") -> Node:
    return replace(one, ends_at=at, ends_why=why)


@pytest.mark.parametrize("profile", ["fifo", "adaptive", "srtf"])
def test_a_run_is_asked_for_its_checkpoint_as_early_as_it_takes(profile: str) -> None:
    world = World(ending(node("a", 8), 2000.0, "kernel update"), profile=profile, abilities=STOPS)
    world.submit("one", request=MAY_STOP, estimate=SAVES_10_S)
    assert world.places == {"one": "a0"}
    world.train("one")
    assert world.scheduler.next_due() is not None
    assert world.scheduler.next_due() <= 2000.0 - 22.0  # type: ignore[operator]
    world.wait(977.0)
    assert not world.stopped
    world.wait(1.0)
    assert world.stopped == ["one"]
    assert world.state.story("one")[-1][1] == "stopped: node a leaves service in 22 s (kernel update)"
    world.handle(ev.JobStopped("one"))
    assert world.places == {}, "it is not started again where it has just been asked to leave"
    world.handle(ev.NodesChanged((ending(node("a", 8), 2000.0), node("b", 8))))
    assert world.places == {"one": "b0"}


def test_nothing_starts_that_would_not_reach_a_checkpoint_or_its_end() -> None:
    world = World(ending(node("a", 8, 8), world_end := 1060.0), abilities=STOPS)
    assert world.now == world_end - 60.0
    world.submit("long", estimate=Estimate(service_s=61.0))
    world.submit("saves", request=MAY_STOP, estimate=SAVES_10_S)
    world.submit("short", estimate=Estimate(service_s=50.0))
    assert world.places == {"saves": "a0", "short": "a1"}, "54 s are enough to start, to save and to have trained"
    assert world.state.story("long")[-1][1].endswith(
        "2 that are free leave service before it could reach a checkpoint or its end, for which it needs 61 s"
    )
    world.handle(ev.NodesChanged((node("a", 8, 8), node("b", 8))))
    assert world.places["long"] == "b0"


@given(
    left_s=st.floats(0.0, 300.0),
    service_s=st.one_of(st.none(), st.floats(0.1, 400.0)),
    launching_s=st.floats(0.1, 30.0),
    saving_s=st.floats(0.0, 30.0),
    checkpoint_s=st.one_of(st.none(), st.floats(0.0, 60.0)),
)
@example(left_s=60.0, service_s=20.0, launching_s=6.0, saving_s=2.0, checkpoint_s=None)  # two such took turns for ever
def test_nobody_starts_who_would_be_sent_away_at_once(
    left_s: float, service_s: float | None, launching_s: float, saving_s: float, checkpoint_s: float | None
) -> None:
    world = World(ending(node("a", 8, 8), 1000.0 + left_s), abilities=STOPS)
    expected = Estimate(service_s, launching_s, saving_s, checkpoint_s=checkpoint_s)
    world.submit("one", "two", request=MAY_STOP, estimate=expected)
    started = world.places
    world.handle(ev.TimePassed())
    assert world.places == started and not world.stopped


def test_one_device_may_leave_service_while_its_node_stays() -> None:
    whole = node("a", 8, 8)
    leaves = replace(whole, devices=(replace(whole.devices[0], ends_at=1500.0, ends_why="fan"), whole.devices[1]))
    world = World(whole, profile="adaptive", abilities=STOPS)
    world.submit("one", "two", request=MAY_STOP, estimate=SAVES_10_S)
    world.train("one", "two")
    world.handle(ev.NodesChanged((leaves,)))
    world.wait(480.0)
    assert [world.state.story(job)[-1][1] for job in world.stopped] == ["stopped: a0 leaves service in 20 s (fan)"]
    assert len(world.places) == 1


def test_a_run_that_cannot_be_stopped_stays_and_is_told_once() -> None:
    world = World(node("a", 8), abilities=STOPS)
    world.submit("firm")
    world.train("firm")
    world.handle(ev.NodesChanged((ending(node("a", 8), 1010.0, "spot"),)))
    world.wait(1.0)
    story = [words for _, words in world.state.story("firm")]
    assert story.count("cannot be stopped, and node a leaves service in 10 s (spot)") == 1
    assert world.places == {"firm": "a0"} and not world.stopped


def test_without_anything_known_there_is_a_minute_to_save() -> None:
    world = World(ending(node("a", 8), 1000.0 + 10 * UNKNOWN_CHECKPOINT_S), abilities=STOPS)
    world.submit("one", request=MAY_STOP)
    world.train("one")
    world.wait(9 * UNKNOWN_CHECKPOINT_S)
    assert world.stopped == ["one"]


def test_where_nothing_can_be_stopped_only_whole_runs_start() -> None:
    world = World(ending(node("a", 8), 1500.0))
    world.submit("one", request=MAY_STOP, estimate=SAVES_10_S)
    assert world.places == {}


def test_flows_without_devices_keep_away_from_a_node_that_ends() -> None:
    world = World(ending(node("a", cpus=8), 1010.0), node("b", cpus=8), profile="adaptive", abilities=STOPS)
    world.submit("flow", request=asks(0, cpus=2), estimate=Estimate(service_s=100.0))
    placement = world.state.jobs["flow"].placement
    assert placement is not None and placement.node == "b"
    world.handle(ev.NodesChanged((ending(node("a", cpus=8), 1010.0),)))
    world.submit("next", request=asks(0, cpus=2), estimate=Estimate(service_s=100.0))
    assert world.state.story("next")[-1][1] == (
        "waits: it needs 2 cores for 100 s, until a checkpoint or its end, "
        "and no node that stays so long has so many free"
    )


def test_a_run_that_would_be_cut_short_prefers_a_node_that_stays() -> None:
    world = World(ending(node("a", 8), 5000.0), node("b", 8, 8))
    world.submit("long", estimate=Estimate(service_s=3999.0, saving_s=2.0))
    world.submit("short", estimate=Estimate(service_s=3000.0))
    assert world.places == {"long": "b0", "short": "a0"}


def test_a_forecast_knows_the_end() -> None:
    world = World(ending(node("a", 8), 1100.0), profile="fifo", abilities=STOPS)
    world.submit("first", estimate=Estimate(service_s=60.0))
    world.submit("second", estimate=Estimate(service_s=60.0))
    outlook = forecast(world.scheduler, world.now)
    assert outlook["first"].end == 1060.0
    assert outlook["second"].start is None, "40 s are left when the first one ends"


def test_the_log_of_events_keeps_ends() -> None:
    event = ev.NodesChanged((ending(node("a", 8), 1100.0, "spot"),))
    line = encode(event, 7.0)
    assert decode(line) == (event, 7.0)


@pytest.mark.parametrize("profile", ["fifo", "adaptive"])
@pytest.mark.parametrize("told", [True, False])
def test_simulated_runs_lose_nothing_if_the_end_is_told(profile: str, told: bool) -> None:
    a, b = node("a", 8, 8), node("b", 8, 8)
    jobs = [
        JobModel(
            f"j{number}",
            0.0,
            500.0,
            MAY_STOP,
            estimate=Estimate(500.0, checkpoint_s=3.0),
            checkpoint_s=3.0,
        )
        for number in range(4)
    ]
    changes = [(50.0, (ending(a, 200.0), b))] * told + [(200.0, (b,)), (300.0, (replace(a, id="c"), b))]
    results = Simulated((a, b), jobs, profile, abilities=STOPS, changes=changes).run()
    trained = sum(outcome.trained_s for outcome in results.outcomes)
    assert not results.unfinished
    assert (trained == pytest.approx(4 * 500.0)) is told, "what was trained since the last checkpoint is trained again"
