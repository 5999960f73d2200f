"""A run that runs out of memory teaches: the next one like it is expected to need more than that one had reached."""

from __future__ import annotations

from typing import Any

from prefect_gpu.estimation.program.memory import GROWTH
from tests.live.pool import LivePool

MEBIBYTES = 300  # much more than a run has without them


async def test_running_out_of_memory_raises_the_next_estimate(pool: LivePool) -> None:
    worker = pool.start_worker(virtual_devices="1")
    named: dict[str, Any] = {"features": ["mebibytes"]}
    first = await pool.submit("hungry", job_variables=named, mebibytes=MEBIBYTES, seed=1)
    assert "MemoryError" in ((await pool.until(first, "Failed")).message or "")
    [row] = await pool.rows([first])
    assert (row.outcome, row.out_of_memory, row.estimate) == ("failed", True, {})
    assert row.rss_peak_bytes is not None and row.rss_peak_bytes > MEBIBYTES * 2**20
    assert row.features["named"] == ["mebibytes"]

    worker.wait_for_output("Learned from")
    # Only what is named says what it needs: another seed makes no other run of it.
    again = await pool.submit("hungry", job_variables=named, mebibytes=MEBIBYTES, seed=2)
    await pool.until(again, "Failed")
    [second] = await pool.rows([again])
    median, low, high = second.estimate["memory_bytes"]
    assert GROWTH * row.rss_peak_bytes <= high, "the upper end is what it is planned with"
    assert low <= median <= high

    caught = await pool.submit("hungry", mebibytes=1, catches=True)
    await pool.until(caught, "Completed")
    [row] = await pool.rows([caught])
    assert not row.out_of_memory, "it helped itself"
