"""What a worker removes of old runs: what is its own, and nothing that anybody may need."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from pathlib import Path
from uuid import uuid4

from prefect_gpu.training.checkpoints import CheckpointStore
from tests.live.pool import LivePool, eventually

AT_ONCE = {"keep_days": "0.000001", "virtual_devices": "2", "warm_start": "false"}


async def test_a_start_removes_old_checkpoints_of_runs_that_are_over_and_nothing_else(
    pool: LivePool, tmp_path: Path
) -> None:
    place, hurry = tmp_path / "data", tmp_path / "go"
    settings = AT_ONCE | {"checkpoints": str(place)}
    worker = await asyncio.to_thread(pool.start_worker, **settings)
    failed = await pool.submit("saves_and_fails")
    lives = await pool.submit("carries_on", trace=str(tmp_path / "trace"), steps=100_000, hurry=str(hurry))
    waits = await pool.submit("plain", at=datetime.now(timezone.utc) + timedelta(days=1))
    await pool.until(failed, "Failed")

    async def ready() -> bool:
        saved = all((place / str(run_id) / "current").exists() for run_id in (failed, lives))
        return saved and not pool.record(failed)

    await eventually(ready, "checkpoints, and the end of the run that failed")
    worker.kill()  # nothing of what follows happens before the next start
    CheckpointStore(place / str(waits)).save(lambda path: path.write_text("weights"), step=1)
    foreign = [place / "README", place / "thesis" / "chapter-1", place / str(uuid4()) / "weights"]
    foreign.append(place / str(uuid4()) / "step-000001" / "notes")  # another program calls its folders so, too
    for file in foreign:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("irreplaceable")

    worker = await asyncio.to_thread(pool.start_worker, **settings)

    async def removed() -> bool:
        return not (place / str(failed)).exists()

    await eventually(removed, "the removal of what the failed run had left")
    await asyncio.to_thread(worker.wait_for_output, "Removed what 1 run had left")
    assert all(file.read_text() == "irreplaceable" for file in foreign)
    for run_id in (lives, waits):
        assert CheckpointStore(place / str(run_id)).restore() is not None
    await pool.cancel(lives)
    await pool.until(lives, "Cancelled")
