"""Prefect says that something is not there: a gateway without a backend, another database, or the truth."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_gpu.lab.sandbox import Process
from prefect_gpu.worker.server.asking import Asking
from tests.live.pool import COLD, LivePool, eventually
from tests.live.proxy import Proxy

pytestmark = pytest.mark.full
SETTINGS = COLD | {"virtual_devices": "1", "prescheduling": "false"}


async def started(pool: LivePool, proxy: Proxy, **settings: str) -> Process:
    """A worker behind the proxy."""
    pool.sandbox.env["PREFECT_API_URL"] = proxy.api_url
    try:
        return await asyncio.to_thread(pool.start_worker, **SETTINGS | settings)
    finally:
        pool.sandbox.env["PREFECT_API_URL"] = pool.sandbox.api_url


async def saved(pool: LivePool, place: Path, run_id: UUID, trace: Path) -> int:
    """The process of a run, once it has saved a checkpoint."""

    async def process() -> str | None:
        return of_last_step(trace) if (place / str(run_id) / "current").exists() else None

    return int(await eventually(process, "a checkpoint"))


def of_last_step(trace: Path) -> str:
    """The process that did it."""
    return trace.read_text().splitlines()[-1].split()[2]


async def test_a_run_that_ends_while_a_gateway_has_no_backend_carries_on_from_its_checkpoint(
    pool: LivePool, proxy: Proxy, tmp_path: Path
) -> None:
    place, trace, hurry = tmp_path / "data", tmp_path / "trace", tmp_path / "go"
    await started(pool, proxy, checkpoints=str(place))
    run_id = await pool.submit("carries_on", trace=str(trace), steps=2000, hurry=str(hurry))
    pid = await saved(pool, place, run_id, trace)
    gone = await proxy.fail(404, f"GET /api/flow_runs/{run_id}")
    os.kill(pid, signal.SIGKILL)

    async def asked_again() -> bool:
        return gone.met >= 3

    await eventually(asked_again, "another question for the run")
    assert (place / str(run_id) / "current").exists()
    await proxy.heal()
    hurry.touch()
    await pool.until(run_id, "Completed")
    steps = [line.split() for line in trace.read_text().splitlines()]
    assert min(int(step) for step, _, by, _ in steps if int(by) != pid) > 0


async def test_a_run_that_was_deleted_is_settled_and_its_checkpoints_go_when_failed_ones_do(
    pool: LivePool, proxy: Proxy, tmp_path: Path
) -> None:
    place, trace = tmp_path / "data", tmp_path / "trace"
    settings = {"checkpoints": str(place), "deleted_after_seconds": "0.5"}
    worker = await started(pool, proxy, **settings)
    run_id = await pool.submit("carries_on", trace=str(trace), steps=2000)
    pid = await saved(pool, place, run_id, trace)
    await pool.client.delete_flow_run(run_id)
    os.kill(pid, signal.SIGKILL)
    (row,) = await pool.rows([run_id])
    assert (row.outcome, row.message) == ("cancelled", "The flow run was deleted while it ran.")

    async def forgotten() -> bool:
        return not pool.record(run_id)

    await eventually(forgotten, "the end of its launch")
    assert (place / str(run_id) / "current").exists()
    await asyncio.to_thread(worker.terminate)
    worker = await started(pool, proxy, **settings, keep_days="0.000001")
    await asyncio.to_thread(worker.wait_for_output, "Removed what 1 run had left")
    assert not (place / str(run_id)).exists()


async def test_one_404_is_in_no_runs_way(pool: LivePool, proxy: Proxy) -> None:
    await started(pool, proxy, warm_start="true")
    for path in (
        "GET /api/deployments/",
        "GET /api/flow_run_states",
        "POST /api/flow_runs/.*/set_state",
        "GET /api/flow_runs/",
    ):
        lost = await proxy.fail(404, path, times=1)
        run_id = await pool.submit("plain")
        assert (await pool.until(run_id)).name == "Completed", path
        assert lost.met == 1


async def looks(asking: Asking, clock: list[float], *times: float) -> list[bool]:
    """Whether an absence is believed at each of these times."""
    absence, believed = asking.absence(), []
    for clock[0] in times:
        believed.append(await absence.is_believed())
    return believed


async def test_an_absence_is_believed_of_a_healthy_server_with_the_same_pool_after_minutes(
    pool: LivePool, proxy: Proxy
) -> None:
    clock = [0.0]
    pool_id = str((await pool.client.read_work_pool(pool.name)).id)

    def asking(pool_id: str) -> Asking:
        logger = logging.getLogger("tests.live")
        return Asking(client, pool.name, pool_id, logger, believed_after_s=60.0, clock=lambda: clock[0])

    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):  # the pauses between its tries are long
        async with PrefectClient(proxy.api_url) as client:
            ours = asking(pool_id)
            assert await looks(ours, clock, 0, 30, 59, 60) == [False, False, False, True]
            assert await looks(ours, clock, 0, 60) == [False, False], "twice is not several times"
            assert await looks(asking(str(uuid4())), clock, 0, 30, 60, 90) == [False] * 4, "another database"
            ill: list[tuple[Any, str]] = [
                (503, "/health"),
                (404, "/work_pools/"),
                (200, "/work_pools/"),
                ("refuse", ""),
            ]
            for answer, path in ill:
                absence = ours.absence()
                for clock[0] in (0.0, 30.0, 59.0):
                    assert not await absence.is_believed()
                await proxy.fail(answer, path)
                clock[0] = 60.0
                assert not await absence.is_believed(), (answer, path)
                await proxy.heal()
                for clock[0], believed in ((61.0, False), (120.0, False), (121.0, True)):
                    assert await absence.is_believed() is believed, "it is counted anew"
