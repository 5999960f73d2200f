"""A run that runs out of memory is told so, and teaches: the next one like it is expected to need more than it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.estimation.program.memory import GROWTH
from tests.live.pool import LivePool
from tests.memory_group import join_with_all, memory_group

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


@pytest.mark.full
async def test_who_is_killed_by_the_kernel_is_told_so_and_its_neighbour_goes_on(pool: LivePool, tmp_path: Path) -> None:
    with memory_group(1500 << 20) as group:
        worker = pool.start_worker(virtual_devices="2")
        join_with_all(group, worker.popen.pid)
        neighbour = await pool.submit("train", hold=str(tmp_path / "go"))
        await pool.until(neighbour, "Training")
        hungry = await pool.submit("eats_memory", mebibytes=3000, hold=str(tmp_path / "never"))
        state = await pool.until(hungry)
        assert state.is_crashed(), state
        message = state.message or ""
        assert "The kernel killed a process of the run because main memory ran out" in message
        assert "Its largest one had reached 1." in message, message
        [row] = await pool.rows([hungry])
        assert row.out_of_memory
        (tmp_path / "go").touch()
        assert (await pool.until(neighbour)).is_completed()
        [row] = await pool.rows([neighbour])
        assert not row.out_of_memory
