"""Pre-scheduling, live: the next run prepares while the one before it trains, and trains when that one saves."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from tests.live.pool import LivePool


async def test_the_next_run_is_prepared_while_the_one_before_it_trains(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices="1")
    runs = [await pool.submit("train", hold=str(tmp_path / "go"))]  # until the others are there
    runs += [await pool.submit("train", steps=20, step_s=0.1, saving_s=0.5) for _ in range(5)]
    (tmp_path / "go").touch()
    for run in runs:
        assert (await pool.until(run)).name == "Completed"
    with pool.history_of_runs() as history:
        rows = sorted(history.rows(), key=lambda row: row.granted_at)
    assert any(row.prepared_behind for row in rows)
    assert all(row.gate_wait_s is not None for row in rows if row.prepared_behind)
    for row in rows:
        if row.prepared_behind and (row.gate_wait_s or 0.0) > 2.0:  # a shorter wait may be over before it is shown
            names = [name for name in await pool.names(UUID(row.run_id)) if name in ("Prepared", "Training")]
            assert names == ["Prepared", "Training"]
    assert pool.noted("finished") == {str(run): 1 for run in runs}
