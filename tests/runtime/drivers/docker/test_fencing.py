"""A container whose node is cut off, or stood still, ends itself; one that can reach anybody does not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.drivers.base import Driver, RunHandle
from prefect_gpu.runtime.drivers.conformance import MakeSpec, until
from prefect_gpu.runtime.drivers.docker import Endpoint, fencing
from prefect_gpu.runtime.drivers.docker.fencing import Fence, reached
from tests.runtime.drivers.docker.test_swarm import driver, make_driver, make_spec

__all__ = ["driver", "make_driver", "make_spec"]

WORKER, NODE = ("10.0.0.1", 4000), ("10.0.0.2", 7946)


class StillThere(Exception):
    """Time is up, and nothing was concluded."""


class World:
    """A clock that only waiting moves, and who is reached at which time."""

    def __init__(self, folder: Path, who: Callable[[float], set[tuple[str, int]]], until_s: float = 1000.0) -> None:
        self.folder, self.who, self.now, self.until_s = folder, who, 0.0, until_s
        self.asked: list[tuple[str, int]] = []
        self.stands_still: dict[float, float] = {}  # when, and for how long

    def write(self, *nodes: tuple[str, int], patience_s: float = 10.0) -> None:
        (self.folder / fencing.FILE).write_text(json.dumps({"addresses": nodes, "patience_s": patience_s}))

    def reach(self, address: tuple[str, int], within_s: float) -> bool:
        self.asked.append(address)
        if address in self.who(self.now):
            return True
        self.now += within_s
        return False

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.stands_still if at <= self.now]:
            self.now += self.stands_still.pop(at)
        if self.now > self.until_s:
            raise StillThere

    def wait(self) -> float:
        watch = Fence(
            str(self.folder), "ws://10.0.0.1:4000", reach=self.reach, clock=lambda: self.now, sleep=self.sleep
        )
        return watch.wait()


@pytest.mark.parametrize("patience_s", [4.0, 10.0])
def test_it_ends_within_its_patience_once_nobody_is_reached(tmp_path: Path, patience_s: float) -> None:
    world = World(tmp_path, lambda now: {WORKER} if now < 100 else set())
    world.write(NODE, patience_s=patience_s)
    assert world.wait() > patience_s
    assert 100 + patience_s * 0.8 < world.now < 100 + patience_s * 1.5, "less than the Swarm has: three heartbeats"


def test_the_nodes_are_asked_only_where_the_worker_is_not_reached(tmp_path: Path) -> None:
    world = World(tmp_path, lambda now: {WORKER, NODE} if now < 100 else {NODE}, until_s=200)
    world.write(NODE)
    with pytest.raises(StillThere):
        world.wait()
    first = world.asked.index(NODE)
    assert set(world.asked[:first]) == {WORKER} and first > 50


def test_a_short_cut_is_borne(tmp_path: Path) -> None:
    world = World(tmp_path, lambda now: set() if 100 < now < 108 else {WORKER})
    world.write(NODE)
    with pytest.raises(StillThere):
        world.wait()


def test_standing_still_for_too_long_counts_as_well(tmp_path: Path) -> None:
    world = World(tmp_path, lambda now: {WORKER})
    world.stands_still = {50.0: 5.0, 100.0: 15.0}
    world.write(NODE)
    assert 15 <= world.wait() < 18
    assert world.now < 120, "at once, and not after another look around"


def test_nothing_is_concluded_without_anybody_to_ask_or_before_contact(tmp_path: Path) -> None:
    world = World(tmp_path, lambda now: {WORKER} if now < 50 else set())
    with pytest.raises(StillThere):
        world.wait()  # nobody has said whom to ask: a single Engine
    world = World(tmp_path, lambda now: set())
    world.write(NODE)
    with pytest.raises(StillThere):
        world.wait()  # a network from which nobody is ever reached


def test_a_worker_that_takes_over_is_contact(tmp_path: Path) -> None:
    other = ("10.0.0.9", 5000)
    world = World(tmp_path, lambda now: {WORKER} if now < 50 else {other}, until_s=200)
    world.write(NODE)
    (tmp_path / fencing.CHANNEL_FILE).write_text(json.dumps({"url": "ws://10.0.0.9:5000"}))
    with pytest.raises(StillThere):
        world.wait()


def test_a_refusal_is_contact() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        assert reached(address, 1.0)
    assert reached(address, 1.0), "nobody listens there any more, and the machine says so"
    assert not reached(("no-such-host.invalid", 1), 1.0)


@contextlib.asynccontextmanager
async def running(driver: Driver, make_spec: MakeSpec, node: str) -> AsyncIterator[RunHandle]:
    """A run on a node that would take an hour."""
    code = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (print("terminated"), sys.exit(1)))
        open("ready", "w").close()
        time.sleep(3600)
    """
    spec = dataclasses.replace(make_spec(code), node=node)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    await asyncio.sleep(3)  # for a first contact
    yield handle


async def test_a_run_ends_with_the_link_of_its_node(cluster: Lab, driver: Driver, make_spec: MakeSpec) -> None:
    node = cluster.nodes[2]
    async with (
        running(driver, make_spec, node.name) as handle,
        running(driver, make_spec, cluster.nodes[1].name) as other,
    ):
        cluster.set_link(node, up=False)
        try:
            report = await asyncio.wait_for(handle.wait(), 120)
        finally:
            cluster.set_link(node, up=True)
        assert report.lost and report.returncode is None and "cut off" in report.cause
        await other.stop(0)
        assert not (await other.wait()).lost, "the others still see each other"


async def test_a_run_whose_container_is_stopped_from_outside_is_lost(
    cluster: Lab, driver: Driver, make_spec: MakeSpec
) -> None:
    """As by an Engine that is shut down: the run must not tell Prefect that it crashed, for it goes on elsewhere."""
    node = cluster.nodes[1]
    async with running(driver, make_spec, node.name) as handle:
        client = Endpoint(node.url).connect()
        await asyncio.to_thread(client.containers.get(str(handle.pid).split(":")[1]).stop)
        client.close()
        report = await handle.wait()
        assert report.lost and "from outside" in report.cause and "terminated" not in report.tail


async def test_a_run_is_lost_with_the_power_of_its_node_though_that_is_back_at_once(
    cluster: Lab, driver: Driver, make_spec: MakeSpec
) -> None:
    """Before the Swarm has seen that it was away, that is; its Engine knows of the container, and not how it ended."""
    node = cluster.nodes[2]
    async with running(driver, make_spec, node.name) as handle:
        await asyncio.to_thread(cluster.stop_engine, node)
        await asyncio.to_thread(cluster.start_engine, node)
        report = await asyncio.wait_for(handle.wait(), 120)
        assert report.lost and report.returncode is None and "lost its power" in report.cause


async def test_a_run_ends_when_its_node_stood_still(cluster: Lab, driver: Driver, make_spec: MakeSpec) -> None:
    node = cluster.nodes[2]
    async with running(driver, make_spec, node.name) as handle:
        pids = cluster.freeze(node)
        await asyncio.sleep(12)
        cluster.thaw(pids)
        report = await asyncio.wait_for(handle.wait(), 120)
        assert report.lost and "stood still" in report.cause
