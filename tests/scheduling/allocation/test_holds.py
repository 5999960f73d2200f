"""What people are told while a job waits."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.units import parse_bytes
from tests.scheduling.world import World, asks, node

# nodes, a job that runs already, the request, the code and the reason
TABLE: dict[str, tuple[list[Node], Request | None, Request, str, str]] = {
    "no node is known": ([], None, asks(), "nodes", "no node is known yet"),
    "all devices are taken": (
        [node("n", 8)],
        asks(),
        asks(),
        "devices",
        "it needs 1 device on one node, and 1 of 1 is in use",
    ),
    "a gang finds too few free devices": (
        [node("n", 8, 8)],
        asks(),
        asks(2),
        "devices",
        "it needs 2 devices on one node, and 1 of 2 is in use",
    ),
    "the free device is too small, and is not counted": (
        [node("n", 8, 80)],
        asks(1, 60),
        asks(1, 40),
        "devices",
        "it needs 1 device with 40GiB on one node, and 1 of 1 is in use",
    ),
    "the shared device has too little left": (
        [node("n", 8)],
        asks(1, 5, shares=True),
        asks(1, 4, shares=True),
        "memory",
        "it needs 1 device with 4GiB on one node, and shared devices have at most 3GiB left",
    ),
    "the device is not shared": (
        [node("n", 8)],
        asks(1, 1),
        asks(1, 4, shares=True),
        "devices",
        "it needs 1 device with 4GiB on one node, and 1 of 1 is in use",
    ),
    "more devices than any node has": (
        [node("n", 8, 8), node("m", 8)],
        None,
        asks(3),
        "never",
        "gpus=3 is more than the 2 that a node of this worker has: ask for 2 or fewer",
    ),
    "more memory than any device has": (
        [node("n", 8, 24)],
        None,
        asks(1, 40),
        "never",
        "gpu_memory=40GiB is more than this worker has: ask for at most 24GiB",
    ),
    "more memory than the devices of a gang have": (
        [node("n", 8, 80), node("m", 16, 24)],
        None,
        asks(2, 40),
        "never",
        "gpu_memory=40GiB on each of 2 devices of one node is more than this worker has: ask for at most 16GiB",
    ),
    "no device at all": (
        [node("n")],
        None,
        asks(),
        "never",
        "gpus=1, but this worker has no device: see its log. If another worker of its machine has them, end that one, "
        "and start this one anew. Else install the NVIDIA driver, or declare virtual devices with "
        "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES=2",
    ),
}


@pytest.mark.parametrize("nodes, running, request_, code, reason", TABLE.values(), ids=TABLE.keys())
def test_reasons(nodes: list[Node], running: Request | None, request_: Request, code: str, reason: str) -> None:
    world = World(*nodes)
    if running is not None:
        world.submit("running", request=running)
    world.submit("a", request=request_)
    assert world.held("a") == [code]
    assert world.reason("a") == reason


@pytest.mark.parametrize("memory_gib", [0.1, 0.75, 8, 11.99, 12.0559, 79.6, 139.9])
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_job_that_takes_the_advice_starts(memory_gib: float, gpus: int) -> None:
    world = World(node("n", memory_gib, memory_gib))
    world.submit("a", request=asks(gpus, 1000))
    advice = parse_bytes(world.reason("a").rpartition("at most ")[2])
    world.submit("b", request=Request(gpus, advice))
    assert "b" in world.places


def test_a_reason_is_told_once() -> None:
    world = World(node("n", 8, 8))
    world.submit("a", "b", "c")
    world.submit("c")
    world.wait(1)
    world.end("a")
    world.submit("a2", "b2")
    assert world.held("b2") == ["devices"] and world.held("c") == ["devices"]


def test_a_reason_of_another_kind_is_told() -> None:
    world = World(node("n", 8))
    world.submit("a")
    world.submit("b", due=world.now + 5)
    world.wait(5)
    world.limit(pool_paused=True)
    world.limit()
    world.handle(ev.DrainRequested())
    assert world.held("b") == ["due", "devices", "paused", "devices", "draining"]


def test_once_a_node_has_come_it_is_told_that_its_device_is_in_use() -> None:
    world = World()
    world.submit("a", "b")
    world.handle(ev.NodesChanged((node("n", 8),)))
    assert "a" in world.places and world.held("b") == ["nodes", "devices"]


def test_another_request_is_told_its_own_reason() -> None:
    world = World(node("n", 8))
    world.submit("a", request=asks(9))
    world.submit("a", request=asks(5))
    assert world.held("a") == ["never", "never"] and "gpus=5" in world.reason("a")


def test_what_never_fits_fits_when_a_larger_node_comes() -> None:
    world = World(node("n", 8))
    world.submit("a", request=asks(2))
    world.handle(ev.NodesChanged((node("n", 8, 8),)))
    assert world.held("a") == ["never"] and world.places == {"a": "n0 n1"}


def test_the_story_of_a_job_is_kept_after_its_end() -> None:
    world = World(node("n", 8))
    world.submit("a", "b")
    world.end("a", "b")
    assert [sentence for _, sentence in world.state.story("b")] == [
        "submitted",
        "waits: it needs 1 device on one node, and 1 of 1 is in use",
        "granted n0: n0 is free",
        "ended: its process ended",
    ]
    assert world.state.story("unheard of") == []


def test_the_stories_of_long_gone_jobs_are_given_up() -> None:
    world = World(node("n", 8))
    for number in range(1100):
        world.submit(str(number))
        world.end(str(number))
    assert world.state.story("0") == [] and world.state.story("1099") != []
