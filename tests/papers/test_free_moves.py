"""Profiles where moving costs nothing: the whole order is placed afresh at each decision."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.papers.baselines.orders import Priority
from prefect_gpu.papers.free_moves import with_free_moves
from prefect_gpu.papers.muri.interleaved import best_fit
from prefect_gpu.papers.muri.node_packing import Packing
from prefect_gpu.papers.muri.replan import Replan
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile, get_profile
from tests.scheduling.world import GIB, World, node

FREE = Abilities(Preemption.INSTANT, free_moves=True)


def stops(gpus: int = 1, **more: Any) -> Request:
    """A request of a job that can be stopped."""
    return Request(gpus=gpus, preemptible=True, **more)


def free(profile: str, *nodes: Node) -> World:
    """A world in which moving costs nothing."""
    return World(*nodes, profile=with_free_moves(get_profile(profile)), abilities=FREE)


def test_a_wide_job_that_comes_first_stops_two_small_ones() -> None:
    world = free("srsf", node("n", 8, 8))
    world.submit("a", "b", request=stops(), service_s=100.0)
    world.submit("pair", request=stops(2), service_s=10.0)
    assert sorted(world.stopped) == ["a", "b"] and world.places == {"pair": "n0 n1"}


def test_jobs_move_together_to_make_room_for_a_wide_one() -> None:
    world = free("srtf", node("n", 8, 8), node("m", 8, 8))
    world.submit("a", "b", "c", "d", request=stops(), service_s=100.0)
    world.end("b", "c")
    assert sorted(world.places.values()) in (["m1", "n0"], ["m0", "n0"], ["m1", "n1"], ["m0", "n1"])
    world.submit("pair", request=stops(2), service_s=200.0)
    assert len(world.moved) == 1 and world.stopped == [], "one moves over to the other"
    assert set(world.places) == {"a", "d", "pair"}


def test_tiresias_lets_a_job_sink_at_its_limit_and_asks_to_be_woken_then() -> None:
    world = free("tiresias", node("n", 8))
    world.submit("first", request=stops())
    world.submit("second", request=stops())
    assert world.scheduler.next_due() == world.now + 3250.0
    world.wait(3250.0)
    assert world.stopped == ["first"] and world.places == {"second": "n0"}


def test_adaptive_fills_both_devices_rather_than_serve_the_shortest_alone() -> None:
    world = free("adaptive", node("n", 8, 8))
    world.submit("single", request=stops(), service_s=100.0)
    world.submit("pair", request=stops(2), service_s=110.0)
    assert world.places == {"pair": "n0 n1"}, "the single one would leave a device idle"


def test_adaptive_learns_how_long_jobs_last_when_nobody_says() -> None:
    world = free("adaptive", node("n", *[8] * 8))
    for number in range(20):
        world.submit(f"small-{number}", request=stops())
        world.wait(30.0)
        world.end(f"small-{number}")
        world.submit(f"wide-{number}", request=stops(8))
        world.wait(40_000.0)
        world.end(f"wide-{number}")
    world.submit("wide", request=stops(8))
    world.submit("small", request=stops())
    assert world.places.keys() == {"small"}, "small ones have always been short"


def stages(load: float, compute: float, sync: float) -> Estimate:
    """A job that iterates in these stages and has much to do."""
    return Estimate(service_s=1000.0, stages_s=(load, compute, sync), iteration_s=load + compute + sync)


def test_jobs_whose_stages_interleave_share_a_device() -> None:
    world = free("adaptive", node("n", 8))
    request = stops(exclusive=False, gpu_memory_bytes=2 * GIB, spans=True)
    world.submit("loads", request=request, estimate=stages(0.9, 0.1, 0.0))
    world.submit("computes", request=request, estimate=stages(0.1, 0.9, 0.0))
    assert world.places == {"loads": "n0", "computes": "n0"}


def test_jobs_that_need_the_same_stage_take_turns() -> None:
    world = free("adaptive", node("n", 8))
    request = stops(exclusive=False, gpu_memory_bytes=2 * GIB, spans=True)
    world.submit("one", "two", request=request, estimate=stages(0.05, 0.95, 0.0))
    assert len(world.places) == 1


# -- packing ----------------------------------------------------------------------------------------------------------


def test_packing_is_first_fit_and_forgets_nothing() -> None:
    packing = Packing([node("n", 8, 8), node("m", 8, 8)])
    assert [packing.put(stops(g)) for g in (1, 2, 1, 1)] == [[(0, 1)], [(1, 2)], [(0, 1)], None]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(2, [(0, 2)]), (4, [(0, 2), (1, 2)]), (5, [(0, 2), (1, 2), (2, 1)]), (7, None)],
)
def test_a_job_larger_than_a_node_takes_whole_nodes_and_the_rest(gpus: int, expected: Any) -> None:
    packing = Packing([node("n", 8, 8), node("m", 8, 8), node("o", 8, 8)])
    assert packing.put(stops(gpus, spans=True)) == expected


def test_the_fullest_node_that_fits_is_taken() -> None:
    assert best_fit([3, 1, 2], 1, 4) == [(1, 1)]
    assert best_fit([3, 1, 2], 3, 4) == [(0, 3)]
    assert best_fit([3, 1, 2], 4, 4) is None
    assert best_fit([4, 1, 4, 2], 9, 4) == [(0, 4), (2, 4), (1, 1)]


def test_jobs_that_take_turns_on_their_devices_get_large_ones_too() -> None:
    world = free("adaptive", node("small", 8, 8), node("large", 80, 80))
    request = Request(1, 40 * GIB, exclusive=False, preemptible=True, spans=True)
    known = Estimate(service_s=100.0, stages_s=(0.1, 0.2, 0.1), iteration_s=0.3)
    world.submit("a", "b", request=request, estimate=known)
    assert set(world.places.values()) <= {"large0", "large1"} and world.places


def test_everything_is_placed_afresh_with_gangs_and_their_servers() -> None:
    world = World(
        node("n", 8, 8), node("m", 8, 8), profile=Profile("test", Priority(), allocation=(Replan(),)), abilities=FREE
    )
    for at in range(3):
        world.submit(f"one-{at}", request=stops())
    world.submit("gang", request=stops(workers=2, servers=1, priority=1))
    place = world.state.jobs["gang"].placement
    assert place is not None and place.servers == 1 and len(place.parts) == 3
