"""Gangs of real processes: all or none, who they are, and what happens when one of them ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from benchmarks._host.pool import Run, module, virtual_node
from benchmarks._host.waiting import until
from prefect_gpu.runtime.drivers.base import LaunchError, LaunchSpec
from prefect_gpu.runtime.drivers.conformance import probes
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.gang import GangHandle, adopt_together, launch_together
from prefect_gpu.scheduling.model.jobs import Request
from tests.runtime.orders import OrderedPool
from tests.runtime.stand_ins import MemoryHandle

LOGGER = logging.getLogger("test.gang")


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[OrderedPool]:
    async with OrderedPool(tmp_path, (virtual_node(4),)) as running:
        yield running


def submit(pool: OrderedPool, run_id: str, request: Request, *, steps: int = 30, breaks: int = -1) -> Path:
    folder = pool.folder / run_id
    folder.mkdir()
    told = json.dumps({"folder": str(folder), "steps": steps, "breaks": breaks})
    pool.submit(Run(run_id, module("tests.runtime.gang_training"), request, {"GANG": told}))
    return folder


def facts(folder: Path, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"rank-{rank}.json").read_text())  # type: ignore[no-any-return]


def alive(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


async def test_instances_know_who_they_are_and_have_their_own_devices(pool: OrderedPool) -> None:
    folder = submit(pool, "run", Request(workers=3))
    await pool.over("run")
    assert pool.courses["run"].completed
    told = [facts(folder, rank) for rank in range(3)]
    assert [one["RANK"] for one in told] == ["0", "1", "2"] == [one["LOCAL_RANK"] for one in told]
    assert {one["WORLD_SIZE"] for one in told} == {"3"} == {one["LOCAL_WORLD_SIZE"] for one in told}
    devices = [device for one in told for device in one["devices"]]
    assert len(devices) == len(set(devices)) == 3
    assert all((folder / f"done-{rank}").exists() for rank in range(3))


async def test_parameter_servers_come_last_and_hold_no_device(pool: OrderedPool) -> None:
    folder = submit(pool, "run", Request(workers=2, servers=1))
    await pool.over("run")
    roles = [(facts(folder, rank)["PREFECT_GPU_ROLE"], len(facts(folder, rank)["devices"])) for rank in range(3)]
    assert roles == [("worker", 1), ("worker", 1), ("server", 0)]


async def test_a_gang_waits_until_there_is_room_for_all(pool: OrderedPool) -> None:
    first = submit(pool, "first", Request(workers=3))
    second = submit(pool, "second", Request(workers=2))
    await until((first / "rank-2.json").exists, "the third instance")
    assert list(second.iterdir()) == []
    await pool.over("first", "second")
    assert (second / "done-1").exists()


@pytest.mark.parametrize("breaks", [0, 1, 2])
async def test_one_that_dies_stops_all(pool: OrderedPool, breaks: int) -> None:
    folder = submit(pool, "run", Request(workers=3), breaks=breaks)
    await pool.over("run")
    report = pool.courses["run"].report
    assert report is not None and report.returncode == 9
    if breaks:
        assert f"Instance {breaks} of 3 ended first" in report.cause
    assert not any(alive(facts(folder, rank)["pid"]) for rank in range(3))


async def test_a_gang_that_gives_way_carries_on_together(pool: OrderedPool) -> None:
    folder = submit(pool, "run", Request(workers=2, preemptible=True), steps=100)
    await until(lambda: pool.trains("run"), "it to train")
    before = facts(folder, 1)["pid"]
    pool.leave("run")
    await pool.over("run")
    assert pool.courses["run"].completed and facts(folder, 1)["pid"] != before
    assert (folder / "done-0").exists() and (folder / "done-1").exists()


async def test_a_gang_is_adopted_whole(pool: OrderedPool) -> None:
    folder = submit(pool, "run", Request(workers=2), steps=200)
    await until(lambda: pool.trains("run"), "it to train")
    pids = [facts(folder, rank)["pid"] for rank in range(2)]
    await pool.controller.close()
    await pool.begin()
    await pool.over("run")
    assert pool.courses["run"].completed and [facts(folder, rank)["pid"] for rank in range(2)] == pids


async def test_if_one_cannot_be_started_none_is(tmp_path: Path) -> None:
    driver, make = ProcessDriver(warm=False, logger=LOGGER), probes(tmp_path)
    await driver.start()
    try:
        good = make("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(3600)")
        with pytest.raises(LaunchError, match=r"^instance 1: FileNotFoundError"):
            await launch_together(driver, [good, make("", argv=("no-such-program",))], LOGGER)
        pid = good.cwd / "pid"
        assert not pid.exists() or not alive(int(pid.read_text()))
    finally:
        await driver.close()


async def test_a_gang_of_which_one_never_started_is_not_adopted(tmp_path: Path) -> None:
    driver, make = ProcessDriver(warm=False, logger=LOGGER), probes(tmp_path)
    await driver.start()
    try:
        spec: LaunchSpec = make("import time; time.sleep(3600)")
        started = await driver.launch(spec)
        never = tmp_path / "never"
        never.mkdir()
        assert await adopt_together(driver, [(spec.run_id, spec.run_dir), ("never", never)], LOGGER) is None
        assert isinstance(started.pid, int) and not alive(started.pid)
    finally:
        await driver.close()


@pytest.mark.parametrize("heard_late", [(9, 1.0), (-9, 1.0), (9, None), (9, 3.0), (0, 1.0)])
async def test_the_report_is_of_the_instance_that_ended_first_and_not_of_the_one_that_was_heard_first(
    heard_late: tuple[int, float | None],
) -> None:
    handles = [MemoryHandle(f"run.{rank}") for rank in range(3)]
    gang = GangHandle("run", handles, LOGGER)
    handles[1].end(5, ended_at=2.0)
    code, at = heard_late
    handles[0].stop = AsyncMock(side_effect=lambda _: handles[0].end(code, ended_at=at))  # type: ignore[method-assign]
    report = await gang.wait()
    assert report.returncode == (9 if heard_late == (9, 1.0) else 5)
    assert [handle.running for handle in handles] == [False, False, False]


async def test_of_a_gang_that_is_stopped_no_instance_is_blamed(caplog: pytest.LogCaptureFixture) -> None:
    handles = [MemoryHandle(f"run.{rank}") for rank in range(3)]
    gang = GangHandle("run", handles, LOGGER)
    end = handles[0].stop

    async def later(grace_seconds: float) -> None:
        await asyncio.wait([asyncio.ensure_future(handle.wait()) for handle in handles[1:]])
        await asyncio.sleep(0)
        await end(grace_seconds)

    handles[0].stop = later  # type: ignore[method-assign]
    await gang.stop(0)
    report = await gang.wait()
    assert report.returncode == -15 and report.cause == "" and caplog.records == []
