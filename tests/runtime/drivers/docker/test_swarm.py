"""The conformance suite on a Swarm of three nodes, and what several nodes bring."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.conformance import DriverConformance, MakeDriver, MakeSpec, probes, until
from prefect_gpu.runtime.drivers.docker import Endpoint, SwarmDriver
from prefect_gpu.runtime.launch.gang import launch_together
from prefect_gpu.scheduling.model.cluster import Node
from tests.runtime.drivers.docker.test_engine import inside

LOGGER = logging.getLogger("test.driver")


@pytest.fixture
def make_driver(cluster: Lab, tmp_path: Path) -> MakeDriver:
    default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
    manager = Endpoint(cluster.nodes[0].url)
    return lambda echo: SwarmDriver(manager, default, pool="p", echo=echo, logger=LOGGER)


@pytest.fixture
def make_spec(cluster: Lab, tmp_path: Path) -> MakeSpec:
    """Runs on all nodes in turn."""
    plain, names = probes(tmp_path), itertools.cycle(node.name for node in cluster.nodes)

    def make(*arguments: Any, **more: Any) -> LaunchSpec:
        return dataclasses.replace(plain(*arguments, **more), node=next(names))

    return make


class TestSwarm(DriverConformance):
    @pytest.fixture
    def make_driver(self, make_driver: MakeDriver) -> MakeDriver:
        return make_driver

    @pytest.fixture
    def make_spec(self, make_spec: MakeSpec) -> MakeSpec:
        return make_spec

    def still_alive(self, pid: int | str) -> bool:
        if isinstance(pid, int):
            return inside(pid, self.folder)
        name, _, container = pid.partition(":")
        node = next(node for node in self.cluster.nodes if node.name == name)
        return bool(Endpoint(node.url).connect().containers.list(filters={"id": container}))

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: Lab, tmp_path: Path) -> None:
        self.cluster, self.folder = cluster, tmp_path


@pytest.fixture
async def driver(make_driver: MakeDriver) -> Any:
    made = make_driver(lambda label, line: None)
    await made.start()
    yield made
    await made.close()


async def test_its_nodes_are_found_with_their_labels(cluster: Lab, driver: Any) -> None:
    nodes = await driver.nodes()
    assert [node.id for node in nodes] == [node.name for node in cluster.nodes]
    assert all(node.cpus for node in nodes)


async def test_a_node_that_is_drained_takes_no_work_and_what_runs_there_goes_on(
    cluster: Lab, driver: Any, make_spec: MakeSpec
) -> None:
    name = cluster.nodes[1].name
    code = "import time; open('ready', 'w').close(); time.sleep(3600)"
    spec = dataclasses.replace(make_spec(code), node=name)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    seen: list[tuple[list[str], list[str]]] = []

    def tell(nodes: Sequence[Node]) -> None:
        seen.append(([node.id for node in nodes], [node.id for node in driver.closed_nodes]))

    watching = asyncio.ensure_future(driver.watch_nodes(tell))
    manager = Endpoint(cluster.nodes[0].url).connect()
    told = next(node for node in manager.nodes.list() if node.attrs["Description"]["Hostname"] == name)
    others = [node.name for node in cluster.nodes if node.name != name]
    try:
        told.update({**told.attrs["Spec"], "Availability": "drain"})
        await until(lambda: seen and seen[-1] == (others, [name]))
    finally:
        told.reload()
        told.update({**told.attrs["Spec"], "Availability": "active"})
        await until(lambda: seen and seen[-1][1] == [])
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        client = Endpoint(cluster.nodes[1].url).connect()
        running = client.containers.list(filters={"label": f"prefect-gpu.run={spec.run_id}"})
        await handle.stop(0)
        client.close()
        manager.close()
    assert len(running) == 1, "it went on"


async def test_a_gang_meets_across_nodes(driver: Driver, make_spec: MakeSpec, tmp_path: Path) -> None:
    code = """
        import os, socket
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["RANK"] == "0":
            server = socket.create_server(("0.0.0.0", address[1]))
            names = sorted(server.accept()[0].recv(100).decode() for _ in range(2))
            print(*names)
        else:
            while True:
                try:
                    socket.create_connection(address, timeout=5).sendall(os.environ["RANK"].encode())
                    break
                except OSError:
                    pass
    """
    first = make_spec(code)
    address, port = driver.meeting_point(first.run_id, first.run_dir)
    specs = [first, make_spec(code), make_spec(code)]
    gang = [
        dataclasses.replace(
            spec, meets=True, env={**spec.env, "RANK": str(rank), "MASTER_ADDR": address, "MASTER_PORT": str(port)}
        )
        for rank, spec in enumerate(specs)
    ]
    handle = await launch_together(driver, gang, LOGGER)
    report = await handle.wait()
    assert (report.returncode, report.tail) == (0, ("1 2",))


async def test_a_node_that_is_lost_ends_its_runs_and_is_swept_when_it_is_back(
    cluster: Lab, driver: Any, make_spec: MakeSpec
) -> None:
    lost = cluster.nodes[2]
    spec = dataclasses.replace(make_spec("import time; open('ready', 'w').close(); time.sleep(3600)"), node=lost.name)
    handle = await driver.launch(spec)
    await until((spec.cwd / "ready").exists)
    seen: list[Sequence[Node]] = []
    await driver.sweep()
    watching = asyncio.ensure_future(driver.watch_nodes(seen.append))
    try:
        await until(lambda: seen and len(seen[-1]) == 3)
        cluster.stop_engine(lost)
        report = await handle.wait()
        assert report.returncode is None and f"Its node {lost.name} is gone" in report.cause
        with pytest.raises(LaunchError, match="takes no work"):
            await driver.launch(dataclasses.replace(make_spec("pass"), node=lost.name))
        await until(lambda: len(seen[-1]) == 2)
        await asyncio.to_thread(cluster.start_engine, lost)
        await until(lambda: len(seen[-1]) == 3)
        client = Endpoint(lost.url).connect()
        assert client.containers.list(all=True, filters={"label": "prefect-gpu.pool=p"}) == []
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
