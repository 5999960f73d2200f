"""Prefect is away, or a gateway says anything: a worker stays up, and what ends meanwhile is settled afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefect_gpu.lab.sandbox import Process, free_port
from tests.live.pool import COLD, LivePool, eventually
from tests.live.proxy import Answer, Proxy
from tests.live.test_two_workers import start_leased

QUICK = {"PREFECT_WORKER_QUERY_SECONDS": "0.5", "PREFECT_WORKER_HEARTBEAT_SECONDS": "1"}
"""So that a worker meets in seconds what it else meets in ten minutes."""
NONSENSE = '{"status": "ok"}'
"""JSON that Prefect never answers."""


async def outlives(
    pool: LivePool,
    proxy: Proxy,
    folder: Path,
    worker: Process,
    answers: tuple[Answer, ...],
    seconds: float,
    health: str,
) -> None:
    """A run ends in each of the outages, and another one waits; each time both go on afterwards."""
    direct = {"env": {"PREFECT_API_URL": pool.sandbox.api_url}}  # the runs themselves reach Prefect

    async def submit(name: str) -> Any:
        return await pool.submit("train", job_variables=direct, hold=str(folder / name))

    async def ask() -> None:
        async with httpx.AsyncClient() as client:
            while True:
                assert (await client.get(health)).status_code == 200, "a restart would not help"
                await asyncio.sleep(0.2)

    runs = [await submit("0")]
    await pool.until_noted(runs[0])
    asking = asyncio.ensure_future(ask())
    for number, answer in enumerate(answers, start=1):
        runs.append(await submit(str(number)))
        await pool.until(runs[-1], "AwaitingGpu")
        await proxy.fail(answer, body=NONSENSE)
        (folder / str(number - 1)).touch()
        await pool.until(runs[-2], "Completed")
        await asyncio.wait((asking,), timeout=seconds)
        assert worker.popen.poll() is None, f"{answer}: {worker.output}"
        await proxy.heal()
        await pool.until_noted(runs[-1])
        assert (await pool.rows([runs[-2]]))[0].outcome == "completed"
        assert not asking.done(), f"{answer}: {asking.exception()}"
    asking.cancel()
    (folder / str(len(answers))).touch()
    await pool.until(runs[-1], "Completed")
    assert pool.noted() == {str(run_id): 1 for run_id in runs}

    async def settled() -> bool:
        return not list((pool.state_dir / "runs").iterdir())

    await eventually(settled, "every launch settled")


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [
        pytest.param((404, 200), 4.0, id="seconds"),
        pytest.param((503, "freeze", 401), 25.0, id="minutes", marks=pytest.mark.full),  # the storm has the others
    ],
)
@pytest.mark.timeout(900)
async def test_outages_are_survived(
    answers: tuple[Answer, ...], seconds: float, pool: LivePool, proxy: Proxy, tmp_path: Path
) -> None:
    port = free_port()
    others = QUICK | {"PREFECT_API_URL": proxy.api_url, "PREFECT_WORKER_WEBSERVER_PORT": str(port)}
    worker = await asyncio.to_thread(
        pool.start_worker, "--with-healthcheck", others=others, virtual_devices="1", prescheduling="false", **COLD
    )
    await outlives(pool, proxy, tmp_path, worker, answers, seconds, f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize("answer", [404, pytest.param(401, marks=pytest.mark.full)])
async def test_a_leader_that_is_refused_leads_again(
    answer: Answer, pool: LivePool, proxy: Proxy, tmp_path: Path
) -> None:
    """Its lease runs out after some seconds, as after a minute elsewhere, and nobody else is there."""
    worker = start_leased(pool, "only", PREFECT_API_URL=proxy.api_url)
    go = tmp_path / "go"
    run_id = await pool.submit("train", job_variables={"env": {"PREFECT_API_URL": pool.sandbox.api_url}}, hold=str(go))
    await pool.until_noted(run_id)
    await proxy.fail(answer)
    await asyncio.to_thread(worker.wait_for_output, "no longer leads")
    await proxy.heal()
    await asyncio.to_thread(worker.wait_for_output, "adopted it")
    go.touch()
    await pool.until(run_id, "Completed")
    assert pool.noted() == pool.noted("finished") == {str(run_id): 1}


async def test_a_phase_that_could_not_be_shown_is_shown_later(pool: LivePool, proxy: Proxy, tmp_path: Path) -> None:
    """The run has nothing new meanwhile."""
    through = {"PREFECT_API_URL": proxy.api_url}
    await asyncio.to_thread(pool.start_worker, others=through, virtual_devices="1", prescheduling="false", **COLD)
    hold, hold_saving = tmp_path / "hold", tmp_path / "hold_saving"
    direct = {"env": {"PREFECT_API_URL": pool.sandbox.api_url}}
    run_id = await pool.submit("train", job_variables=direct, hold=str(hold), hold_saving=str(hold_saving))
    await pool.until(run_id, "Training")
    gone = await proxy.fail(404, rf"PATCH /api/flow_runs/{run_id}")
    hold.touch()

    async def tried_again() -> bool:
        return gone.met > 1

    await eventually(tried_again, "a second try")
    await proxy.heal()
    await pool.until(run_id, "Saving")
    hold_saving.touch()
    await pool.until(run_id, "Completed")
