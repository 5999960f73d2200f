"""A run that runs out of memory teaches: the next one like it is expected to need more than that one had reached."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect_gpu.estimation.memory import GROWTH
from prefect_gpu.storage.history import History, HistoryRow
from tests.live.pool import LivePool, eventually

MEBIBYTES = 300  # much more than a run has without them


async def row_of(pool: LivePool, run_id: UUID) -> HistoryRow:
    """What the history keeps of a run, as soon as it does."""
    with History(f"sqlite:///{pool.state_dir / 'history.db'}") as history:

        async def recorded() -> HistoryRow | None:
            return next((row for row in history.rows() if row.run_id == str(run_id)), None)

        row: HistoryRow = await eventually(recorded, f"the history row of {run_id}")
    return row


async def test_running_out_of_memory_raises_the_next_estimate(pool: LivePool) -> None:
    worker = pool.start_worker(virtual_devices="1")
    named: dict[str, Any] = {"features": ["mebibytes"]}
    first = await pool.submit("hungry", job_variables=named, mebibytes=MEBIBYTES, seed=1)
    assert "MemoryError" in ((await pool.until(first, "Failed")).message or "")
    row = await row_of(pool, first)
    assert (row.outcome, row.out_of_memory, row.estimate) == ("failed", True, {})
    assert row.rss_peak_bytes is not None and row.rss_peak_bytes > MEBIBYTES * 2**20
    assert row.features["named"] == ["mebibytes"]

    worker.wait_for_output("Learned from")
    # Only what is named says what it needs: another seed makes no other run of it.
    again = await pool.submit("hungry", job_variables=named, mebibytes=MEBIBYTES, seed=2)
    await pool.until(again, "Failed")
    median, low, high = (await row_of(pool, again)).estimate["memory_bytes"]
    assert GROWTH * row.rss_peak_bytes <= high, "the upper end is what it is planned with"
    assert low <= median <= high

    caught = await pool.submit("hungry", mebibytes=1, catches=True)
    await pool.until(caught, "Completed")
    assert not (await row_of(pool, caught)).out_of_memory, "it helped itself"
