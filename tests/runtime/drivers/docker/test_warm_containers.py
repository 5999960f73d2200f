"""Containers that are made before their runs: the conformance suite with them, and when they are not used."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient

from prefect_gpu.lab.checkout import IMAGE, environment, volumes
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.drivers.base import ContainerSpec, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.conformance import Echo, MakeDriver, MakeSpec, probes, until
from prefect_gpu.runtime.drivers.docker import Ahead, DockerDriver, Endpoint, SwarmDriver, containers
from prefect_gpu.worker.nodes.warm import AFTER_FORK, BEFOREHAND, PREFECT_MODULES
from tests.runtime.drivers.docker import test_engine

LOGGER = logging.getLogger("test.driver")
POOL = "warm"
MakeWarm = Callable[..., DockerDriver]

_folders = itertools.count(1)


def idle(client: DockerClient, pool: str = POOL) -> list[str]:
    """Names of the containers that wait for a run, or have died as they did."""
    return [name for name in containers.leftovers(client, containers.Pool(pool)) if name.startswith(containers.IDLE)]


def ready(driver: DockerDriver) -> int:
    assert driver._warm is not None
    return driver._warm.waiting()


def settled(driver: DockerDriver) -> bool:
    """Whether nothing is being warmed up."""
    assert driver._warm is not None
    return not driver._warm._making


async def warm_up(driver: DockerDriver, spec: LaunchSpec) -> None:
    """Launch this, and wait until a container is ready for the next one."""
    handle = await driver.launch(spec)
    assert (await handle.wait()).returncode == 0
    await until(lambda: ready(driver))


class WarmedDriver(DockerDriver):
    """Starts with a container that is ready for a run of the suite, and checks that one takes it."""

    folder: Path

    async def start(self) -> None:
        await super().start()
        self.folder.mkdir()
        self.warm: list[bool] = []
        await warm_up(self, probes(self.folder)("pass"))
        self.warm.clear()

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        handle = await super().launch(spec)
        if spec.argv[0] == "python" and spec.container is None:
            self.warm.append(handle.warm)
        return handle

    async def close(self) -> None:
        await super().close()
        assert any(self.warm) or not self.warm


class TestWarmContainers(test_engine.TestOneEngine):
    @pytest.fixture
    def make_driver(self, engine: Endpoint, tmp_path: Path) -> MakeDriver:
        default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))

        def make(echo: Echo) -> DockerDriver:
            driver = WarmedDriver(engine, default, pool=POOL, ahead=Ahead(), echo=echo, logger=LOGGER)
            driver.folder = tmp_path / f"warming{next(_folders)}"
            return driver

        return make


_AS_WITHOUT = (
    "test_a_container_that_somebody_removes_is_reported",
    "test_a_folder_that_is_not_there_is_a_launch_error",
    "test_a_program_that_is_not_there_is_a_launch_error",
    "test_an_environment_that_cannot_be_is_a_launch_error",
    "test_an_image_that_is_not_there_is_a_launch_error",
    "test_cores_that_are_not_there_are_a_warning",
    "test_its_memory_limit_ends_it_and_is_said",  # it has a test of its own below
    "test_large_output_is_repeated_whole",
    "test_no_container_is_left_once_the_end_is_known",
    "test_several_callers_may_wait",
    "test_twenty_runs_at_once",
    "test_who_leads_no_more_removes_nothing_of_the_next_leaders",
)
"""Nothing is launched, or nothing changes once it is: each of these would warm a container first, and not use it."""
for _name in _AS_WITHOUT:
    assert callable(getattr(test_engine.TestOneEngine, _name))
    setattr(TestWarmContainers, _name, None)


# ---- when they are used, and when not ----


@pytest.fixture
def client(engine: Endpoint) -> Any:
    connected = engine.connect()
    yield connected
    connected.close()


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)


@pytest.fixture
async def make_warm(engine: Endpoint, tmp_path: Path) -> AsyncIterator[MakeWarm]:
    """Make drivers; called with what they do ahead."""
    made: list[DockerDriver] = []

    def make(ahead: Ahead = Ahead(), pool: str = POOL) -> DockerDriver:  # noqa: B008 -- it is frozen
        default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
        made.append(DockerDriver(engine, default, pool=pool, ahead=ahead, echo=lambda *_: None, logger=LOGGER))
        return made[-1]

    yield make
    for driver in made:
        await driver.close()


@pytest.fixture
async def driver(make_warm: MakeWarm) -> DockerDriver:
    made = make_warm()
    await made.start()
    return made


async def result(driver: DockerDriver, spec: LaunchSpec) -> tuple[bool, tuple[str, ...]]:
    """Whether a run was warm, and what it printed."""
    handle = await driver.launch(spec)
    return handle.warm, (await handle.wait()).tail


async def test_prefect_is_imported_before_the_job_comes(
    make_warm: MakeWarm, make_spec: MakeSpec, tmp_path: Path
) -> None:
    driver = make_warm(Ahead(PREFECT_MODULES, AFTER_FORK, BEFOREHAND))
    await driver.start()
    how = ContainerSpec(IMAGE, volumes=tuple(volumes(tmp_path)))
    code = """
        import os, sys, time
        print("prefect.flow_engine" in sys.modules)
        from prefect.settings import get_current_settings
        print(get_current_settings().api.url)
        print(os.path.exists("/prefect-gpu/job.json"), "fork_compatibility" in sys.modules, "/prefect-gpu" in sys.path)
    """
    make: Callable[[str], LaunchSpec] = lambda url: dataclasses.replace(  # noqa: E731
        make_spec(code, **environment(), PREFECT_API_URL=url), container=how
    )
    first = await result(driver, make("http://first/api"))
    assert first == (False, ("False", "http://first/api", "False False False"))
    await until(lambda: ready(driver))
    second = await result(driver, make("http://second/api"))
    assert second == (True, ("True", "http://second/api", "False False False"))


async def test_each_serves_one_run_and_another_takes_its_place(
    driver: DockerDriver, make_spec: MakeSpec, client: DockerClient
) -> None:
    seen = set()
    await warm_up(driver, make_spec("pass"))
    for _ in range(3):
        handle = await driver.launch(make_spec("pass"))
        seen.add(handle.pid)
        assert handle.warm and (await handle.wait()).returncode == 0
        await until(lambda: ready(driver))
    assert len(seen) == 3
    assert len(idle(client)) == 1 and test_engine.runs_of(client) == []


async def test_it_has_its_name_its_cores_and_all_of_their_time(
    driver: DockerDriver, make_spec: MakeSpec, client: DockerClient
) -> None:
    await warm_up(driver, make_spec("pass"))
    spec = make_spec("import time; time.sleep(600)", cpus=(1,), TOKEN="secret")
    handle = await driver.launch(spec)
    seen = client.containers.get(str(handle.pid).partition(":")[2]).attrs
    await handle.stop(0)
    assert handle.warm and seen["Name"] == f"/{containers.container_name(spec.run_id, spec.run_dir)}"
    assert seen["HostConfig"]["CpusetCpus"] == "1" and seen["HostConfig"]["CpuQuota"] in (-1, 0)
    assert "secret" not in str(seen)


async def test_its_memory_limit_ends_it_and_is_said(driver: DockerDriver, make_spec: MakeSpec, tmp_path: Path) -> None:
    how = ContainerSpec(IMAGE, memory_bytes=100 << 20, volumes=(f"{tmp_path}:{tmp_path}",))
    await warm_up(driver, dataclasses.replace(make_spec("pass"), container=how))
    handle = await driver.launch(dataclasses.replace(make_spec("x = bytearray(400 << 20)"), container=how))
    report = await handle.wait()
    assert handle.warm and report.returncode == -9 and "more memory than its container's limit" in report.cause


async def test_what_a_container_is_made_of_must_be_the_same(
    driver: DockerDriver, make_spec: MakeSpec, tmp_path: Path
) -> None:
    spec = make_spec("pass")
    how = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
    await warm_up(driver, spec)
    others = [
        dataclasses.replace(how, memory_bytes=1 << 30),
        dataclasses.replace(how, shm_bytes=1 << 27),
        dataclasses.replace(how, volumes=(*how.volumes, "/tmp:/elsewhere")),
        dataclasses.replace(how, labels={"of": "somebody else"}),
        dataclasses.replace(how, network="host"),
    ]
    for other in others:
        handle = await driver.launch(dataclasses.replace(make_spec("pass"), container=other))
        await handle.wait()
        assert not handle.warm
        await until(lambda: settled(driver))
    assert ready(driver) == Ahead().most


async def test_labels_of_a_single_run_are_no_reason(
    make_warm: MakeWarm, make_spec: MakeSpec, tmp_path: Path, client: DockerClient
) -> None:
    driver = make_warm(Ahead(labels_of_runs=("run/",)))
    await driver.start()

    def make(code: str, name: str) -> LaunchSpec:
        labels = {"run/name": name, "team": "a"}
        how = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",), labels=labels)
        return dataclasses.replace(make_spec(code), container=how)

    await warm_up(driver, make("pass", "first"))
    handle = await driver.launch(make("import time; time.sleep(600)", "second"))
    labels = client.containers.get(str(handle.pid).partition(":")[2]).labels
    await handle.stop(0)
    assert handle.warm and labels["team"] == "a" and "run/name" not in labels


async def test_another_environment_for_the_interpreter_is_another_kind(
    driver: DockerDriver, make_spec: MakeSpec
) -> None:
    await warm_up(driver, make_spec("pass"))
    code = "import os, sys; print(sys.flags.hash_randomization)"
    assert await result(driver, make_spec(code, PYTHONHASHSEED="0")) == (False, ("0",))
    assert await result(driver, make_spec(code, SECRET="x")) == (True, ("1",))


async def test_what_differs_only_inside_is_started_cold_in_the_same_container(
    driver: DockerDriver, make_spec: MakeSpec
) -> None:
    await warm_up(driver, make_spec("pass"))
    spec = make_spec("import json; print(json.mine)")
    (spec.cwd / "json.py").write_text("mine = True")  # a module that the warm interpreter has loaded from elsewhere
    before = ready(driver)
    assert (before, await result(driver, spec)) == (1, (False, ("True",)))


async def test_an_image_that_was_pulled_anew_is_another_one(
    driver: DockerDriver, make_spec: MakeSpec, client: DockerClient, tmp_path: Path
) -> None:
    client.images.get(IMAGE).tag("moved", "1")
    how = ContainerSpec("moved:1", volumes=(f"{tmp_path}:{tmp_path}",))
    make = lambda: dataclasses.replace(make_spec("import os; print(os.environ.get('NEW'))"), container=how)  # noqa: E731
    try:
        await warm_up(driver, make())
        (old,) = idle(client)
        changed = client.containers.create(IMAGE, ["true"])
        changed.commit("moved", "1", changes="ENV NEW=yes")
        changed.remove()
        assert await result(driver, make()) == (False, ("yes",))
        await until(lambda: ready(driver) and settled(driver))
        (new,) = idle(client)
        assert new != old
        assert await result(driver, make()) == (True, ("yes",))
    finally:
        client.images.remove("moved:1", force=True)


async def test_one_that_died_is_replaced_and_no_run_notices(
    driver: DockerDriver, make_spec: MakeSpec, client: DockerClient
) -> None:
    await warm_up(driver, make_spec("pass"))
    client.api.kill(idle(client)[0])
    assert await result(driver, make_spec("print(1)")) == (False, ("1",))
    await until(lambda: ready(driver))
    (dead,) = idle(client)
    client.api.kill(dead)
    await driver.sweep()
    await until(lambda: ready(driver))
    assert dead not in idle(client)
    (removed,) = idle(client)
    client.api.remove_container(removed, force=True)
    assert await result(driver, make_spec("print(2)")) == (False, ("2",))


async def test_those_of_a_worker_that_died_are_swept_and_those_of_other_pools_are_not(
    driver: DockerDriver, make_warm: MakeWarm, make_spec: MakeSpec, client: DockerClient
) -> None:
    other, later = make_warm(pool="other"), make_warm()
    await other.start()
    await warm_up(driver, make_spec("pass"))
    await warm_up(other, make_spec("pass"))
    await later.start()
    await later.sweep()
    assert idle(client) == [] and len(idle(client, "other")) == 1
    assert not (await later.launch(make_spec("pass"))).warm  # not the other pool's


async def test_none_is_left_when_the_worker_stops(
    driver: DockerDriver, make_spec: MakeSpec, client: DockerClient
) -> None:
    await warm_up(driver, make_spec("pass"))
    await driver.close()
    assert idle(client) == []


async def test_no_more_wait_than_may(make_warm: MakeWarm, make_spec: MakeSpec, client: DockerClient) -> None:
    driver = make_warm(Ahead(most=1))
    await driver.start()
    await warm_up(driver, make_spec("pass"))
    (first,) = idle(client)
    await (await driver.launch(make_spec("pass", PYTHONHASHSEED="1"))).wait()
    await until(lambda: ready(driver) and settled(driver))
    assert len(idle(client)) == 1 and idle(client) != [first]


async def test_none_waits_where_memory_is_tight(
    make_warm: MakeWarm, make_spec: MakeSpec, client: DockerClient, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_warm(Ahead(keep_free=1.0))
    await driver.start()
    await (await driver.launch(make_spec("pass"))).wait()
    await until(lambda: settled(driver))
    assert (ready(driver), idle(client)) == (0, []) and "has little memory left" in caplog.text


async def test_an_image_without_what_every_run_needs_is_said_and_left_alone(
    make_warm: MakeWarm, make_spec: MakeSpec, client: DockerClient, caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_warm(Ahead(after_fork="not_there:at_all"))
    await driver.start()
    for _ in range(2):
        assert await result(driver, make_spec("print(1)")) == (False, ("1",))
        await until(lambda: settled(driver))
    assert idle(client) == [] and caplog.text.count("No warm starts with") == 1


async def test_one_that_waited_long_enough_is_removed(
    make_warm: MakeWarm, make_spec: MakeSpec, client: DockerClient
) -> None:
    driver = make_warm(Ahead(keep_s=0.0))
    await driver.start()
    await warm_up(driver, make_spec("pass"))
    await driver.sweep()
    assert idle(client) == []


async def test_a_node_that_is_drained_has_none(cluster: Lab, tmp_path: Path, make_spec: MakeSpec) -> None:
    default = ContainerSpec(IMAGE, volumes=(f"{tmp_path}:{tmp_path}",))
    manager, node = Endpoint(cluster.nodes[0].url), cluster.nodes[1]
    driver = SwarmDriver(manager, default, pool=POOL, ahead=Ahead(), echo=lambda *_: None, logger=LOGGER)
    await driver.start()
    client, own = manager.connect(), Endpoint(node.url).connect()
    try:
        handle = await driver.launch(dataclasses.replace(make_spec("pass"), node=node.name))
        await handle.wait()
        await until(lambda: ready(driver._drivers[node.name]))
        set_availability(client, node.name, "drain")
        while node.name in {known.id for known in await driver.nodes()}:  # noqa: ASYNC110 -- the manager is asked
            await asyncio.sleep(0.1)
        assert idle(own) == []
    finally:
        set_availability(client, node.name, "active")
        await driver.close()
        client.close()
        own.close()


def set_availability(manager: DockerClient, name: str, availability: str) -> None:
    """As `docker node update --availability` does."""
    (node,) = manager.nodes.list(filters={"name": name})
    node.update({**node.attrs["Spec"], "Availability": availability})


# ---- a worker dies as it hands a container over ----


@pytest.fixture
async def noted(
    driver: DockerDriver, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LaunchSpec]:
    """A launch whose worker got as far as to note the container that had waited, and never told it to begin."""
    await warm_up(driver, make_spec("pass"))
    spec = make_spec("print('ran')")
    with monkeypatch.context() as patch:
        patch.setattr(containers, "begin", lambda *_: None)
        launching = asyncio.ensure_future(driver.launch(spec))
        await until(lambda: driver._handles)
    for handle in tuple(driver._handles):
        handle.release()
    await asyncio.gather(launching, return_exceptions=True)
    yield spec


async def test_the_next_worker_lets_it_begin_once(make_warm: MakeWarm, noted: LaunchSpec) -> None:
    later = make_warm()
    await later.start()
    handles = await asyncio.gather(*(later.adopt(noted.run_id, noted.run_dir) for _ in range(3)))
    for handle in handles:
        assert handle is not None and handle.warm
        report = await handle.wait()
        assert (report.returncode, report.tail) == (0, ("ran",))


async def test_one_that_died_before_it_began_is_no_run(
    make_warm: MakeWarm, noted: LaunchSpec, client: DockerClient
) -> None:
    (name,) = test_engine.runs_of(client)
    client.api.kill(name)
    later = make_warm()
    await later.start()
    assert await later.adopt(noted.run_id, noted.run_dir) is None
    assert test_engine.runs_of(client) == []
