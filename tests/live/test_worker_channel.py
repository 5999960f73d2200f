"""What Prefect's server has done by a worker, over its channel, and what it believes of workers: with short times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from prefect.client.schemas.objects import WorkerStatus, WorkPoolStatus

from prefect_gpu.lab.sandbox import Sandbox, wait_until
from tests.live.pool import COLD, LivePool, eventually, live_pool, none_left

pytestmark = pytest.mark.full

_SERVICES = "PREFECT_SERVER_SERVICES_"
SOON = {
    f"{_SERVICES}CANCELLATION_CLEANUP_CANCELLING_TIMEOUT_SECONDS": "1",  # Prefect's default is 300
    f"{_SERVICES}FOREMAN_LOOP_SECONDS": "1",
}
OFTEN = {"PREFECT_WORKER_HEARTBEAT_SECONDS": "1"}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A server that has little patience."""
    with Sandbox(tmp_path_factory.mktemp("sandbox"), SOON) as box:
        yield box


@pytest_asyncio.fixture
async def strict(impatient: Sandbox, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[LivePool]:
    """A pool of its own on that."""
    async with live_pool(impatient, tmp_path, request.node.nodeid, "strict") as live:
        yield live
    none_left(impatient, request.node)


async def test_a_worker_beats_and_one_that_is_killed_is_offline_and_its_pool_not_ready(strict: LivePool) -> None:
    worker = strict.start_worker(virtual_devices="1", others=OFTEN, **COLD)
    [first] = await strict.client.read_workers_for_work_pool(strict.name)

    async def later() -> bool:
        [now] = await strict.client.read_workers_for_work_pool(strict.name)
        assert first.last_heartbeat_time is not None and now.last_heartbeat_time is not None
        return now.id == first.id and now.last_heartbeat_time > first.last_heartbeat_time

    async def status() -> tuple[WorkerStatus, WorkPoolStatus | None]:
        [now] = await strict.client.read_workers_for_work_pool(strict.name)
        return now.status, (await strict.client.read_work_pool(strict.name)).status

    await eventually(later, "a later heartbeat")
    assert await status() == (WorkerStatus.ONLINE, WorkPoolStatus.READY)
    await asyncio.to_thread(worker.kill)

    async def offline() -> bool:
        return await status() == (WorkerStatus.OFFLINE, WorkPoolStatus.NOT_READY)

    await eventually(offline, "the worker to be offline, and the pool not ready")


async def test_a_cancellation_that_takes_too_long_for_prefect_is_ended_by_its_cleanup_message(
    strict: LivePool, tmp_path: Path
) -> None:
    """The run ignores SIGTERM, and its worker would give it an hour. Prefect's message gives it 30 seconds."""
    worker = strict.start_worker(virtual_devices="1", cancel_grace_seconds="3600", **COLD)
    run_id = await strict.submit("stubborn", hold=str(tmp_path / "never"))
    await strict.until_noted(run_id)
    await strict.place(run_id)  # the message names it
    await strict.cancel(run_id)
    state = await strict.until(run_id, "Cancelled")
    assert "timed out" in (state.message or "")
    assert strict.sandbox.runs_left(), "so far only Prefect says that it is cancelled"
    await asyncio.to_thread(wait_until, lambda: not strict.sandbox.runs_left(), what=worker.output, timeout_s=120.0)
    await strict.until(await strict.submit("plain"), "Completed")  # its device is free
    assert (await strict.names(run_id))[-1] == "Cancelled", "how its process ended does not change that"
    assert "Traceback" not in worker.output
