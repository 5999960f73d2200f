"""Prefect is the queue: limits, pauses, priorities, and more than one worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prefect import Flow
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.states import Pending, Scheduled

from prefect_gpu.lab.sandbox import Sandbox, free_port, wait_until
from tests.live.pool import ALL, COLD, LivePool, eventually, live_pool
from tests.live.proxy import STREAM, Proxy

PAGE = 30  # rows of a page of this server


@pytest_asyncio.fixture
async def paged(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[LivePool]:
    """A pool on a server whose pages are short."""
    with Sandbox(tmp_path_factory.mktemp("sandbox"), {"PREFECT_SERVER_API_DEFAULT_LIMIT": str(PAGE)}) as box:
        async with live_pool(box, tmp_path, request.node.nodeid, "paged") as live:
            yield live


@pytest.mark.full
async def test_a_full_page_of_blocked_runs_does_not_hide_one_that_can_start(paged: LivePool, tmp_path: Path) -> None:
    pool = paged
    worker = pool.start_worker(virtual_devices="2", **COLD)
    holder = await pool.submit("train", hold=str(tmp_path / "go"))
    await pool.until_noted(holder)
    deployment = await pool.deploy("train")
    await asyncio.to_thread(worker.kill)  # the next worker meets the full queue at once
    for _ in range(PAGE + 5):  # more than one page of this server's API; each needs both devices
        await pool.client.create_flow_run_from_deployment(deployment, job_variables={"gpus": 2}, state=Scheduled())
    small = await pool.submit("plain")
    pool.start_worker(virtual_devices="2", **COLD)
    await pool.until(small, "Completed")
    assert sum(pool.noted().values()) == 2


async def test_a_paused_pool_starts_nothing_until_it_is_resumed(served: LivePool) -> None:
    await served.client.update_work_pool(served.name, WorkPoolUpdate(is_paused=True))
    run_id = await served.submit("plain")
    state = await served.until(run_id, "AwaitingGpu")
    assert "paused" in (state.message or "")
    await served.client.update_work_pool(served.name, WorkPoolUpdate(is_paused=False))
    await served.until(run_id, "Completed")


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(served: LivePool) -> None:
    queue = await served.client.create_work_queue("later", work_pool_name=served.name)
    await served.client.update_work_queue(queue.id, is_paused=True)
    run_id = await served.submit("plain", queue="later")
    state = await served.until(run_id, "AwaitingGpu")
    assert "'later' is paused" in (state.message or "")
    await served.client.update_work_queue(queue.id, is_paused=False)
    await served.until(run_id, "Completed")


async def test_the_limit_of_the_pool_holds(served: LivePool, tmp_path: Path) -> None:
    await served.client.update_work_pool(served.name, WorkPoolUpdate(concurrency_limit=1))
    # Whoever submitted this one was killed before it was done.
    await served.client.create_flow_run(Flow(lambda: None, name="cut"), state=Pending(), work_pool_name=served.name)
    first = await served.submit("train", hold=str(tmp_path / "go"))
    await served.until_noted(first)
    second = await served.submit("train")
    state = await served.until(second, "AwaitingGpu")
    assert "limit of 1 run at once" in (state.message or "")
    (tmp_path / "go").touch()
    await served.until(second, "Completed")
    await served.client.update_work_pool(served.name, WorkPoolUpdate(concurrency_limit=None))


async def test_the_limit_of_a_queue_holds_and_other_queues_go_on(served: LivePool, tmp_path: Path) -> None:
    await served.client.create_work_queue("narrow", work_pool_name=served.name, concurrency_limit=1)
    first = await served.submit("train", queue="narrow", hold=str(tmp_path / "go"))
    await served.until_noted(first)
    second = await served.submit("train", queue="narrow")
    await served.until(second, "AwaitingGpu")
    await served.until(await served.submit("plain"), "Completed")
    assert (await served.read(second)).state.name == "AwaitingGpu"
    (tmp_path / "go").touch()
    await served.until(second, "Completed")


async def test_the_limit_of_the_worker_holds_and_its_healthcheck_answers(pool: LivePool, tmp_path: Path) -> None:
    port = free_port()
    pool.sandbox.env["PREFECT_WORKER_WEBSERVER_PORT"] = str(port)
    try:
        pool.start_worker("--limit", "1", "--with-healthcheck", virtual_devices="2", **COLD)
    finally:
        del pool.sandbox.env["PREFECT_WORKER_WEBSERVER_PORT"]

    def healthy() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(healthy, what="the healthcheck")
    first = await pool.submit("train", hold=str(tmp_path / "go"))
    await pool.until_noted(first)
    second = await pool.submit("train")
    state = await pool.until(second, "AwaitingGpu")
    assert "worker's limit of 1" in (state.message or "")
    (tmp_path / "go").touch()
    await pool.until(second, "Completed")


async def test_the_queue_of_higher_priority_goes_first(served: LivePool, tmp_path: Path) -> None:
    await served.client.create_work_queue("low", work_pool_name=served.name, priority=9)
    await served.client.create_work_queue("high", work_pool_name=served.name, priority=2)
    holder = await served.submit("train", job_variables=ALL, hold=str(tmp_path / "go"))
    await served.until_noted(holder)
    low = await served.submit("plain", queue="low", job_variables=ALL)
    high = await served.submit("plain", queue="high", job_variables=ALL)
    await served.until(low, "AwaitingGpu")
    await served.until(high, "AwaitingGpu")
    (tmp_path / "go").touch()
    await served.until(low, "Completed")
    assert list(served.noted())[-3:] == [str(holder), str(high), str(low)]


async def test_two_workers_never_start_the_same_run(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(state_dir=tmp_path / "one")
    pool.start_worker(state_dir=tmp_path / "two")
    run_ids = [await pool.submit("plain") for _ in range(6)]  # concurrent ones take SQLite far longer
    for run_id in run_ids:
        await pool.until(run_id, "Completed")
    assert pool.noted() == {str(run_id): 1 for run_id in run_ids}


async def test_run_once_runs_what_is_due_and_ends(pool: LivePool) -> None:
    run_ids = [await pool.submit("plain") for _ in range(3)]
    worker = pool.start_worker("--run-once", virtual_devices="1")
    assert worker.popen.wait(120) == 0, worker.output
    for run_id in run_ids:
        assert (await pool.read(run_id)).state.name == "Completed"


async def test_a_run_that_is_deleted_while_it_waits_is_forgotten(served: LivePool, tmp_path: Path) -> None:
    first = await served.submit("train", job_variables=ALL, hold=str(tmp_path / "go"))
    await served.until_noted(first)
    second = await served.submit("train")
    await served.until(second, "AwaitingGpu")
    await served.client.delete_flow_run(second)
    (tmp_path / "go").touch()
    await served.until(await served.submit("plain"), "Completed")
    assert served.noted()[str(second)] == 0


async def test_without_the_event_stream_polling_carries_on_until_it_is_back(pool: LivePool) -> None:
    async with Proxy(pool.sandbox.port) as proxy:
        shut = await proxy.fail("refuse", STREAM)
        pool.sandbox.env["PREFECT_API_URL"] = proxy.api_url
        try:
            often = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
            worker = await asyncio.to_thread(pool.start_worker, others=often, **COLD)
        finally:
            pool.sandbox.env["PREFECT_API_URL"] = pool.sandbox.api_url
        await asyncio.to_thread(worker.wait_for_output, "event stream is closed; polling until it is back")
        await pool.until(await pool.submit("plain"), "Completed")
        assert shut.met and not proxy.opened
        await proxy.heal(shut)
        await asyncio.to_thread(worker.wait_for_output, "event stream is back")
        assert proxy.opened
        await pool.until(await pool.submit("plain"), "Completed")
        await asyncio.to_thread(pool.stop_workers)


async def test_cpu_only_runs_need_no_device(served: LivePool, tmp_path: Path) -> None:
    await served.until_noted(await served.submit("train", job_variables=ALL, hold=str(tmp_path / "go")))
    run_ids = [await served.submit("plain", job_variables={"gpus": 0}) for _ in range(3)]
    for run_id in run_ids:
        await served.until(run_id, "Completed")


async def test_runs_that_declare_their_memory_share_a_device(served: LivePool, tmp_path: Path) -> None:
    await served.until_noted(await served.submit("train", hold=str(tmp_path / "go")))  # it has the other device
    variables = {"gpu_memory": "4GiB", "exclusive": False}
    both = [await served.submit("train", job_variables=variables, hold=str(tmp_path / "go")) for _ in range(2)]
    for run_id in both:
        await served.until_noted(run_id)
    third = await served.submit("train", job_variables=variables)
    await served.until(third, "AwaitingGpu")
    (tmp_path / "go").touch()

    async def done() -> bool:
        return all(run.state.name == "Completed" for run in await served.read_all([*both, third]))

    await eventually(done, "all completed")
