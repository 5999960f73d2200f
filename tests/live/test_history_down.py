"""A history that cannot be used stops nobody: what has finished waits on the disk, and gets there once."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from prefect_gpu.storage.history import History
from tests.live.pool import COLD, DEADLINE_S, LivePool, eventually

pytestmark = pytest.mark.full


async def test_runs_end_without_a_history_and_their_rows_outlive_a_killed_worker(
    pool: LivePool, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.write_text("not mounted yet")
    url = f"sqlite:///{disk / 'history.db'}"
    worker = pool.start_worker(**COLD, history_url=url)
    worker.wait_for_output(f"its folder {disk} cannot be created", timeout_s=DEADLINE_S)
    state = {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(pool.state_dir)}
    told = await asyncio.to_thread(pool.sandbox.run, ["prefect-gpu", "status", "--json"], env=state)
    assert f"its folder {disk} cannot be created" in str(json.loads(told))
    first = await pool.submit("plain")
    await pool.until(first, "Completed")
    waiting = pool.state_dir / "spool" / pool.name

    async def kept(count: int) -> bool:
        return len(list(waiting.glob("*.json"))) == count

    await eventually(lambda: kept(1), "the row of the first run on the disk")
    worker.popen.send_signal(signal.SIGKILL)
    worker.popen.wait()
    said = pool.sandbox.run(
        ["prefect-gpu", "doctor"],
        check=False,
        env={"PREFECT_INTEGRATIONS_GPU_HISTORY_URL": url, "PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(pool.state_dir)},
    )
    assert "1 finished run waits" in said, said

    pool.start_worker(**COLD, history_url=url)
    second = await pool.submit("plain")
    await pool.until(second, "Completed")
    await eventually(lambda: kept(2), "the row of the second run on the disk")
    disk.unlink()
    await eventually(lambda: kept(0), "rows that have left the disk")
    with History(url, read_only=True) as history:
        assert [row.run_id for row in history.rows()] == [str(second), str(first)]
