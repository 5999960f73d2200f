"""Who runs next, chosen as a whole: events in, instructions expected."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Queue
from prefect_gpu.scheduling.model.instructions import Launch, Move, Preempt
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.preemption.best_set import STAYS, paid_back_s
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_until
from prefect_gpu.scheduling.state.lengths import expected_left
from tests.scheduling.world import GIB, World, asks, node
from tests.support import examples

GRACEFUL = Abilities(Preemption.GRACEFUL)
INSTANT = Abilities(Preemption.INSTANT)
STOPS = Request(preemptible=True)


def four(abilities: Abilities = INSTANT, count: int = 1) -> World:
    nodes = [node(name, 8, 8, 8, 8) for name in "nmk"[:count]]
    return World(*nodes, profile="adaptive", abilities=abilities)


def wide(gpus: int) -> Request:
    return replace(STOPS, gpus=gpus)


def test_two_that_fill_the_node_come_before_one_that_would_leave_half_of_it_idle() -> None:
    world = four()
    world.submit("long", request=wide(4), service_s=5_000.0)
    world.submit("three", request=wide(3), service_s=500.0)
    assert world.stopped == ["long"]
    world.end("three")
    assert "long" in world.places
    world.submit("first", request=wide(2), service_s=8_000.0)
    assert "first" not in world.places, "alone it would leave two devices idle"
    world.submit("second", request=wide(2), service_s=8_000.0)
    assert world.places.keys() == {"first", "second"}


def test_a_run_moves_where_a_wide_one_would_not_fit_otherwise_and_nobody_is_stopped() -> None:
    world = four(count=2)
    for name, gpus in (("a", 3), ("b", 3), ("c", 1), ("d", 1)):
        world.submit(name, request=wide(gpus), service_s=5_000.0)
    world.end("c", "a")
    world.submit("wide", request=wide(4), service_s=5_000.0)
    assert "wide" in world.places and not world.stopped
    assert len(world.moved) <= 1


def test_what_a_restart_costs_keeps_a_run_that_is_hardly_longer() -> None:
    for cost_s, stopped in ((0.0, ["long"]), (300.0, [])):
        world = four()
        world.submit("long", request=wide(4), estimate=Estimate(1_200.0, restart_s=cost_s))
        world.submit("short", request=wide(4), estimate=Estimate(1_100.0, restart_s=cost_s))
        assert world.stopped == stopped


def test_two_runs_of_which_nothing_is_known_do_not_take_turns() -> None:
    world = four()
    world.submit("one", request=wide(4), estimate=Estimate(restart_s=30.0))
    world.train("one")
    world.wait(20.0)
    world.submit("other", request=wide(4), estimate=Estimate(restart_s=30.0))
    assert not world.stopped
    world.wait(40_000.0)
    assert world.stopped == ["one"], "by now it is expected to need far more"
    world.wait(10.0)
    assert world.stopped == ["one"]


@pytest.mark.parametrize("told_s", [None, 100.0], ids=["unknown", "outlived"])
def test_a_run_that_goes_on_and_on_is_looked_at_again_though_nothing_happens(told_s: float | None) -> None:
    world = four()
    world.submit("goes on", request=wide(4), estimate=Estimate(told_s, restart_s=30.0))
    world.train("goes on")
    world.wait(100.0)
    world.submit("short", request=wide(4), estimate=Estimate(300.0, restart_s=30.0))
    looks = 0
    while not world.stopped:
        due = world.scheduler.next_due()
        assert due is not None and due >= world.now + 30.0, "else it is looked at all the time"
        world.wait(due - world.now)
        looks += 1
    assert looks < 20


def test_where_all_runs_have_been_equally_long_nobody_who_is_nearly_done_is_stopped_for_a_newcomer() -> None:
    world = four()
    for number in range(40):
        world.submit(f"{number}", request=wide(4))
        world.train(f"{number}")
        world.wait(5_000.0)
        world.end(f"{number}")
    world.submit("old", request=wide(4))
    world.train("old")
    world.wait(4_000.0)
    world.submit("new", request=wide(4))
    assert not world.stopped, "least attained service would have stopped it"


@settings(max_examples=examples(0.5), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.01, 2.0), st.sampled_from([1, 2, 4])), min_size=30, max_size=60),
    st.floats(1.0, 100.0),
    st.sampled_from([None, 10.0, 3_600.0]),
)
def test_a_run_is_stopped_the_more_seldom_the_less_it_could_train(
    newcomers: list[tuple[float, int]], cost_s: float, told_s: float | None
) -> None:
    """However wrong its estimate is, and whoever comes: shorter ones come again and again, and go."""
    world = four()
    world.submit("long", request=wide(4), estimate=Estimate(told_s, restart_s=cost_s))
    world.train("long")
    most_expected_s = 1.0
    for number, (restarts, gpus) in enumerate(newcomers):
        world.wait(restarts * cost_s)
        long = world.state.jobs["long"]
        most_expected_s = max(most_expected_s, expected_left(long, world.now, world.state.learned.lengths)[0])
        world.submit(f"{number}", request=wide(gpus), estimate=Estimate(1.0, restart_s=cost_s))
        world.end(f"{number}")
        world.train("long")
    held_s = world.state.jobs["long"].attained(world.now)
    free = held_s / paid_back_s(cost_s)
    assert world.stopped.count("long") <= free + max(0.0, math.log2(most_expected_s / (STAYS * cost_s))) + 2


def test_whoever_waits_is_told_for_whom() -> None:
    world = four()
    world.submit("firm", request=Request(gpus=1), service_s=90_000.0)
    world.submit("short", request=wide(2), service_s=100.0)
    world.submit("other", request=wide(1), service_s=200.0)
    world.submit("long", request=wide(2), service_s=90_000.0)
    assert world.held("long") == ["devices"]
    assert "What trains there is worth more now; it waits for run short or another to end" in world.reason("long")


def test_runs_that_share_a_device_all_go_or_all_stay() -> None:
    world = World(node("n", 8), profile="adaptive", abilities=INSTANT)
    small = replace(asks(gib=2, shares=True), preemptible=True)
    world.submit("a", "b", request=small, service_s=50_000.0)
    assert world.places == {"a": "n0", "b": "n0"}
    world.submit("alone", request=STOPS, service_s=100.0)
    assert sorted(world.stopped) == ["a", "b"] and world.places == {"alone": "n0"}
    world.end("alone")
    assert world.places == {"a": "n0", "b": "n0"}


def test_a_limit_of_the_user_stops_nobody() -> None:
    world = four()
    world.limit(Queue("q", limit=1))
    world.submit("long", request=wide(4), service_s=50_000.0)
    world.submit("short", request=wide(4), service_s=10.0)
    assert not world.stopped and world.held("short") == ["limit"]


def test_a_gang_starts_whole_where_others_made_room() -> None:
    world = four(count=2)
    world.submit("a", "b", request=wide(4), service_s=90_000.0)
    world.submit("gang", request=Request(gpus=2, workers=3, servers=1, preemptible=True), service_s=100.0)
    place = world.state.jobs["gang"].placement
    assert place is not None and place.servers == 1
    assert sorted(len(part.devices) for part in place.parts) == [0, 2, 2, 2]
    assert sorted(world.stopped) == ["a", "b"]


def test_a_small_device_is_not_freed_for_a_run_that_needs_a_large_one() -> None:
    world = World(node("s", 8, 8), node("l", 80, 80), profile="adaptive", abilities=INSTANT)
    world.submit("a", "b", request=wide(2), service_s=90_000.0)
    world.submit("large", request=Request(gpus=2, gpu_memory_bytes=40 * GIB, preemptible=True), service_s=100.0)
    assert world.places["large"] == "l0 l1" and len(world.stopped) == 1


jobs = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2, 3, 4, 8]),
        st.sampled_from([None, 50.0, 500.0, 5_000.0, 50_000.0]),
        st.booleans(),
        st.sampled_from([0.0, 30.0]),
        st.sampled_from([0.0, 5.0, 100.0, 400.0]),
    ),
    min_size=3,
    max_size=14,
)


@settings(max_examples=examples(1.0), deadline=None)
@given(jobs, st.sampled_from([GRACEFUL, INSTANT]))
def test_whoever_may_not_be_stopped_or_is_left_alone_goes_on_and_the_same_is_always_decided(
    submitted: list[tuple[int, float | None, bool, float, float]], abilities: Abilities
) -> None:
    said = []
    for _ in range(2):
        world = four(abilities, count=3)
        for number, (gpus, service_s, stops, restart_s, passes_s) in enumerate(submitted):
            protected = {
                job.id
                for job in world.state.running.values()
                if not job.request.preemptible or (abilities is GRACEFUL and left_alone_until(job) > world.now)
            }
            before = len(world.instructions)
            request = Request(gpus=gpus, spans=True, preemptible=stops)
            world.submit(f"{number}", request=request, estimate=Estimate(service_s, restart_s=restart_s))
            done = world.instructions[before:]
            disturbed = {one.job for one in done if isinstance(one, Preempt | Move)}
            assert not disturbed & protected
            assert not disturbed or any(isinstance(one, Launch) for one in done), "in vain"
            world.train(*(one.job for one in done if isinstance(one, Launch | Move)))
            for one in done:
                if isinstance(one, Preempt) and abilities is GRACEFUL:
                    world.handle(ev.JobStopped(one.job))
            world.wait(passes_s)
        said.append(world.instructions)
    assert said[0] == said[1]
