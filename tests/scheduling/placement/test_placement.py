"""Where does a job go?"""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.jobs import Request
from tests.scheduling.world import GIB, World, asks, node

S = True  # shares

# nodes, jobs as (id, request), and the devices that each ends up on; a job that is not named waits.
TABLE: dict[str, tuple[list[Node], list[tuple[str, Request]], dict[str, str]]] = {
    "a job takes the first of equal devices": (
        [node("n", 8, 8)],
        [("a", asks())],
        {"a": "n0"},
    ),
    "of two nodes the fuller one that fits is filled first": (
        [node("m", 8, 8), node("n", 8, 8)],
        [("pair", asks(2)), ("a", asks()), ("b", asks())],
        {"pair": "m0 m1", "a": "n0", "b": "n1"},
    ),
    "a smaller node is left fuller and so preferred": (
        [node("big", 8, 8, 8, 8), node("small", 8)],
        [("a", asks())],
        {"a": "small0"},
    ),
    "the smallest device that suffices is taken": (
        [node("n", 80, 24, 48)],
        [("a", asks(1, 20)), ("b", asks(1, 20)), ("c", asks(1, 20))],
        {"a": "n1", "b": "n2", "c": "n0"},
    ),
    "the smallest device that suffices is taken on another node too": (
        [node("m", 80), node("n", 24)],
        [("a", asks(1, 20))],
        {"a": "n0"},
    ),
    "a job without a wish for memory leaves the large devices free": (
        [node("n", 80, 24)],
        [("a", asks()), ("b", asks(1, 60))],
        {"a": "n1", "b": "n0"},
    ),
    "a device that is too small is left alone": (
        [node("n", 8, 24)],
        [("a", asks(1, 20)), ("b", asks(1, 20))],
        {"a": "n1"},
    ),
    "a gang gets all of its devices on one node": (
        [node("m", 8), node("n", 8, 8)],
        [("pair", asks(2))],
        {"pair": "n0 n1"},
    ),
    "a gang is never spread over two nodes": (
        [node("m", 8), node("n", 8)],
        [("pair", asks(2))],
        {},
    ),
    "a gang that does not fit takes nothing, and a later job passes it": (
        [node("n", 8, 8)],
        [("a", asks()), ("pair", asks(2)), ("b", asks())],
        {"a": "n0", "b": "n1"},
    ),
    "each device of a gang has the memory that was asked for": (
        [node("n", 8, 24, 8, 24)],
        [("pair", asks(2, 20))],
        {"pair": "n1 n3"},
    ),
    "a job that needs no device always has room": (
        [node("n", 8)],
        [("a", asks()), ("b", asks(0)), ("c", asks(0))],
        {"a": "n0", "b": "", "c": ""},
    ),
    "a job that needs no device runs on a node without one": (
        [node("n")],
        [("a", asks(0))],
        {"a": ""},
    ),
    "runs that declare their memory and allow company share a device": (
        [node("n", 8)],
        [("a", asks(1, 4, shares=S)), ("b", asks(1, 4, shares=S))],
        {"a": "n0", "b": "n0"},
    ),
    "a device is not shared beyond its memory": (
        [node("n", 8)],
        [("a", asks(1, 4, shares=S)), ("b", asks(1, 5, shares=S)), ("c", asks(1, 4, shares=S))],
        {"a": "n0", "c": "n0"},
    ),
    "a run that is alone on its device is not joined": (
        [node("n", 8)],
        [("a", asks(1, 2)), ("b", asks(1, 2, shares=S))],
        {"a": "n0"},
    ),
    "a run that wants a device for itself joins nobody": (
        [node("n", 8)],
        [("a", asks(1, 2, shares=S)), ("b", asks(1, 2))],
        {"a": "n0"},
    ),
    "a run that does not say how much memory it needs shares with nobody": (
        [node("n", 8)],
        [("a", asks(1, None, shares=S)), ("b", asks(1, 2, shares=S))],
        {"a": "n0"},
    ),
    "a run that shares joins company before it opens a free device": (
        [node("n", 24, 8)],
        [("a", asks(1, 20, shares=S)), ("b", asks(1, 2, shares=S))],
        {"a": "n0", "b": "n0"},
    ),
    "a run that shares joins company on another node before it opens a free device": (
        [node("m", 8, 8), node("n", 8)],
        [("a", asks(1, 4, shares=S)), ("full", asks(2)), ("b", asks(1, 4, shares=S))],
        {"a": "n0", "full": "m0 m1", "b": "n0"},
    ),
    "a run that shares goes where the least is left over": (
        [node("n", 8, 12)],
        [("a", asks(1, 7, shares=S)), ("b", asks(1, 7, shares=S)), ("c", asks(1, 1, shares=S))],
        {"a": "n0", "b": "n1", "c": "n0"},
    ),
    "a gang shares each of its devices": (
        [node("n", 8, 8)],
        [("a", asks(2, 4, shares=S)), ("b", asks(2, 4, shares=S))],
        {"a": "n0 n1", "b": "n0 n1"},
    ),
}


@pytest.mark.parametrize("nodes, jobs, expected", TABLE.values(), ids=TABLE.keys())
def test_placement(nodes: list[Node], jobs: list[tuple[str, Request]], expected: dict[str, str]) -> None:
    world = World(*nodes)
    for job, request in jobs:
        world.submit(job, request=request)
    assert world.places == expected


def granted(world: World, job: str) -> Placement:
    """The placement of an active job."""
    placement = world.state.jobs[job].placement
    assert placement is not None
    return placement


def test_a_run_that_shares_is_granted_what_it_declares_and_another_all_there_is() -> None:
    world = World(node("n", 8, 16))
    world.submit("shares", request=asks(1, 3, shares=S))
    world.submit("alone", request=asks(1, 3))
    assert (granted(world, "shares").memory_bytes, granted(world, "shares").shared) == (3 * GIB, True)
    assert (granted(world, "alone").memory_bytes, granted(world, "alone").shared) == (16 * GIB, False)


def test_a_launch_says_why() -> None:
    world = World(node("n", 8, 8, 8))
    world.submit("a")
    world.submit("pair", request=asks(2, 4, shares=S))
    world.submit("guests", request=asks(2, 4, shares=S))
    world.submit("none", request=asks(0))
    assert [said.reason for said in world.instructions] == [
        "n0 is free",
        "n1, n2 are free",
        "n1, n2 have room beside other runs",
        "it needs no device",
    ]


# near cores of the device, cores asked for, cores already in use by other jobs, cores expected
CORES = {
    "a job gets its device's share of the cores": ({}, None, (), (0, 1, 2, 3)),
    "a job gets as many cores as it asks for": ({}, 2, (), (0, 1)),
    "cores near the device are preferred": ({0: (4, 5, 6, 7)}, 2, (), (4, 5)),
    "idle cores are preferred to near ones": ({0: (4, 5, 6, 7)}, 2, (4, 5, 6, 7), (0, 1)),
    "the least loaded cores are taken": ({}, 3, (0, 1, 2, 3, 4), (5, 6, 7)),
    "a job is not kept from a free device by busy cores": ({}, 8, (0, 1, 2), tuple(range(8))),
    "nobody gets more cores than there are": ({}, 100, (), tuple(range(8))),
}


@pytest.mark.parametrize("near, wanted, busy, expected", CORES.values(), ids=CORES.keys())
def test_cores(
    near: dict[int, tuple[int, ...]], wanted: int | None, busy: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    world = World(node("n", 8, 8, near=near))
    if busy:
        world.adopt("other", Placement("n", (), busy), asks(0))
    world.submit("a", request=asks(1, cpus=wanted))
    assert granted(world, "a").cpus == expected


def test_two_jobs_get_different_cores_and_give_them_back() -> None:
    world = World(node("n", 8, 8))
    world.submit("a", "b")
    assert granted(world, "a").cpus == (0, 1, 2, 3) and granted(world, "b").cpus == (4, 5, 6, 7)
    world.end("a")
    world.submit("c")
    assert granted(world, "c").cpus == (0, 1, 2, 3)


def test_a_gang_gets_the_share_of_all_its_devices() -> None:
    world = World(node("n", 8, 8, 8, 8))
    world.submit("a", request=asks(2))
    assert granted(world, "a").cpus == (0, 1, 2, 3)


def test_a_job_without_devices_gets_the_share_of_one() -> None:
    world = World(node("n", 8, 8))
    world.submit("a", request=asks(0))
    assert len(granted(world, "a").cpus) == 4


def test_a_node_of_unknown_cores_binds_nobody() -> None:
    world = World(node("n", 8, cpus=0))
    world.submit("a")
    assert granted(world, "a").cpus == ()
