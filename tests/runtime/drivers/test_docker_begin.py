"""A container that ends before its run began: whether that says anything of the run."""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from prefect_gpu.runtime.drivers.base import ContainerSpec, ExitReport, LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.docker import DockerDriver, Endpoint, containers
from prefect_gpu.runtime.drivers.docker import handle as module
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made

OF_MEMORY = "The run used more memory than its container's limit"


@pytest.mark.parametrize(
    ("report", "says_nothing_of_the_run"),
    [
        (ExitReport(None, cause="Somebody has removed its container."), True),
        (ExitReport(None, cause="Its node lost its power.", lost=True), True),
        (ExitReport(-9), True),  # somebody killed it
        (ExitReport(-9, cause=OF_MEMORY), False),
        (ExitReport(1, tail=("python3: not found",)), False),
    ],
)
async def test_a_run_may_start_elsewhere_if_its_container_was_ended_by_others(
    report: ExitReport, says_nothing_of_the_run: bool
) -> None:
    async def ended() -> ExitReport:
        return report

    handle = ContainerHandle.__new__(ContainerHandle)  # without an Engine: only what its end was is looked at
    handle._begun = asyncio.get_running_loop().create_future()
    handle._watcher = asyncio.ensure_future(ended())  # type: ignore[assignment]
    with pytest.raises(LaunchError) as raised:
        await handle.begin()
    assert raised.value.away is says_nothing_of_the_run
    assert (report.cause or "before the run began") in str(raised.value)


async def test_a_run_whose_node_is_given_up_as_it_starts_is_not_forgotten() -> None:
    """Nobody follows its container any more then. To end as if its launch had been cancelled would lose the run."""
    handle = ContainerHandle.__new__(ContainerHandle)
    handle._begun = asyncio.get_running_loop().create_future()
    handle._watcher = asyncio.ensure_future(asyncio.sleep(3600))  # type: ignore[assignment, arg-type]
    asyncio.get_running_loop().call_soon(handle._watcher.cancel)
    with pytest.raises(LaunchError) as raised:
        await handle.begin()
    assert raised.value.away


async def test_a_run_that_has_begun_is_not_started_again_because_a_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was started cold in a container that had waited warm, which is to be written down."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_made", full)
    handle = ContainerHandle.__new__(ContainerHandle)
    handle.run_id, handle._dir, handle._logger = "run", tmp_path, logging.getLogger("tests.begin")
    handle._made = Made("container", "n1", "mark", warm=True)
    handle._begun = asyncio.get_running_loop().create_future()
    handle._begun.set_result({"started": {"warm": False}, "cold": "its environment differs"})
    handle._watcher = asyncio.ensure_future(asyncio.sleep(3600))  # type: ignore[assignment, arg-type]
    await handle.begin()
    assert not handle.warm
    handle._watcher.cancel()


async def test_an_engine_that_goes_away_before_a_container_has_started_is_no_fault_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise requests.exceptions.ConnectionError("Connection refused")

    image = containers.Image("sha256:1", {}, "/", user="1000")
    monkeypatch.setattr(containers, "ensure_image", lambda *_: image)
    monkeypatch.setattr(containers, "create", lambda *_: "container")
    engine: Any = SimpleNamespace(api=SimpleNamespace(start=away, remove_container=away))
    driver = DockerDriver(
        Endpoint("unix:///nowhere"), ContainerSpec("image"), name="n1", logger=logging.getLogger("tests.begin")
    )
    driver._client = engine
    with pytest.raises(LaunchError) as raised:
        await driver.launch(LaunchSpec("run", tmp_path, ("python",), {}, tmp_path))
    assert raised.value.away and "could not start a container of image" in str(raised.value)
