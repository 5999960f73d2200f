"""Two workers of one pool: one leads, and the other takes over, whatever happens to the first."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from uuid import UUID

import pytest

from prefect_gpu.sandbox import Process
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

    async def settled() -> bool:
        return not list((pool.state_dir / "runs").iterdir())

    await eventually(settled, "every launch settled")
    rows = await pool.rows(runs)
    assert sorted(row.run_id for row in rows) == sorted(map(str, runs)), "one row for each"


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_every_run_completes_once_although_the_leader_is(how: str, pool: LivePool, tmp_path: Path) -> None:
    leader, second = await both(pool)
    go = tmp_path / "go"
    running = [await pool.submit("train", hold=str(go)) for _ in range(2)]
    for run_id in running:
        await pool.until_noted(run_id)
    waiting = [await pool.submit("train") for _ in range(3)]
    await pool.until(waiting[-1], "AwaitingGpu")
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
