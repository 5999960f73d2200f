"""Two workers of one pool: one leads, and the other takes over, whatever happens to the first."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from prefect_gpu.lab.sandbox import Process
from tests.forge import SHOWS_AT_ONCE
from tests.live import leased_worker
from tests.live.pool import LivePool, eventually


async def both(pool: LivePool) -> tuple[Process, Process]:
    """The one that leads and the one that stands by."""
    leader = pool.start_worker(virtual_devices="2")
    second = pool.start_worker(wait=False, virtual_devices="2")
    await asyncio.to_thread(second.wait_for_output, "Standing by")
    return leader, second


async def ended_well_and_once(pool: LivePool, runs: list[UUID]) -> None:
    for run_id in runs:
        await pool.until(run_id, "Completed")
    for word in ("executed", "finished"):
        assert pool.noted(word) == {str(run_id): 1 for run_id in runs}
    for run_id in runs:
        assert (await pool.names(run_id)).count("Completed") == 1

    async def finalised() -> bool:
        return not list((pool.state_dir / "runs").iterdir())

    await eventually(finalised, "every launch finalised")
    rows = await pool.rows(runs)
    assert sorted(row.run_id for row in rows) == sorted(map(str, runs)), "one row for each"


@pytest.mark.parametrize("how", ["killed", pytest.param("frozen", marks=pytest.mark.full)])
async def test_every_run_completes_once_although_the_leader_is(how: str, pool: LivePool, tmp_path: Path) -> None:
    leader, second = await both(pool)
    go = tmp_path / "go"
    running = [await pool.submit("train", hold=str(go)) for _ in range(2)]
    for run_id in running:
        await pool.until_noted(run_id)
    waiting = [await pool.submit("train") for _ in range(3)]
    await pool.until_one(waiting, "AwaitingGpu")
    if how == "killed":
        leader.kill()
    else:
        leader.popen.send_signal(signal.SIGSTOP)
    await asyncio.to_thread(second.wait_for_output, "Serving pool")
    for run_id in running:
        record = pool.record(run_id)
        assert record and "finished" not in record["times"], "it is adopted, and goes on"
    go.touch()
    await ended_well_and_once(pool, running + waiting)
    assert leader.popen.wait(10) == -signal.SIGKILL
    assert ("no sign of life" in second.output) == (how == "frozen")


async def test_a_leader_that_is_slow_is_left_alone(pool: LivePool) -> None:
    leader, second = await both(pool)
    leader.popen.send_signal(signal.SIGSTOP)
    await asyncio.sleep(3)  # far less than what is held against it
    leader.popen.send_signal(signal.SIGCONT)
    run_id = await pool.submit("train")
    await ended_well_and_once(pool, [run_id])
    assert leader.popen.poll() is None and "Serving pool" not in second.output


def start_leased(pool: LivePool, name: str, module: str = leased_worker.__name__, **more: str) -> Process:
    """Start a worker with a state folder of its own that serves the same nodes as the other one."""
    env = {
        "PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(pool.folder / name),
        "PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES": "1",
        "PREFECT_INTEGRATIONS_GPU_WARM_START": "false",  # so that a run's environment shows what it is
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        **SHOWS_AT_ONCE,
        "NOTES": str(pool.notes),
        "PREFECT_INTEGRATIONS_GPU_PASS_ENVIRONMENT": "NOTES",
        **more,
    }
    command = [sys.executable, "-m", module, "worker", "start", "--pool", pool.name, "--name", name]
    worker = pool.sandbox.start(command, f"{pool.name}-{name}", env)
    pool.workers.append(worker)
    return worker


@pytest.mark.full
async def test_who_has_no_record_takes_over_from_one_that_is_frozen_and_every_run_ends_once(
    pool: LivePool, tmp_path: Path
) -> None:
    first = start_leased(pool, "first")
    await asyncio.to_thread(first.wait_for_output, "Serving pool")
    go = tmp_path / "go"
    running = await pool.submit("tried_again", hold=str(go))
    await pool.until_noted(running)
    waiting = [await pool.submit("train") for _ in range(2)]
    await pool.until_one(waiting, "AwaitingGpu")
    second = start_leased(pool, "second")
    await asyncio.to_thread(second.wait_for_output, "Standing by")
    first.popen.send_signal(signal.SIGSTOP)

    async def tried_again() -> bool:
        return pool.noted()[str(running)] == 2

    await eventually(tried_again, "a second try")
    go.touch()
    runs = [running, *waiting]
    for run_id in runs:
        await pool.until(run_id, "Completed")
    first.popen.send_signal(signal.SIGCONT)
    await asyncio.to_thread(first.wait_for_output, "no longer leads")
    await asyncio.to_thread(first.wait_for_output, "Standing by")
    await asyncio.to_thread(second.terminate)
    runs.append(await pool.submit("train"))
    await pool.until(runs[-1], "Completed")
    assert pool.noted("finished") == {str(run_id): 1 for run_id in runs}
    assert pool.noted() == Counter(map(str, [running, *runs]))
    for run_id in runs:
        assert (await pool.names(run_id)).count("Completed") == 1
    assert "Crashed" not in await pool.names(running)


@pytest.mark.full
async def test_a_leader_that_was_cut_off_from_prefect_carries_on_with_its_runs(pool: LivePool, tmp_path: Path) -> None:
    worker = start_leased(pool, "only")
    go = tmp_path / "go"
    run_id = await pool.submit("train", hold=str(go))
    await pool.until_noted(run_id)
    await asyncio.to_thread(pool.sandbox.stop_server)
    await asyncio.to_thread(worker.wait_for_output, "no longer leads")
    await asyncio.to_thread(pool.sandbox.start_server)
    await asyncio.to_thread(worker.wait_for_output, "adopted it")
    go.touch()
    await pool.until(run_id, "Completed")
    assert pool.noted() == pool.noted("finished") == {str(run_id): 1}
    names = [limit.name for limit in await pool.client.read_global_concurrency_limits(limit=200)]
    assert [name for name in names if f" of {pool.name} " in name and name.endswith("term 000001")], "it was never lost"
