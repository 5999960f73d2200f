"""The worker's disk is full: runs wait for room, and nothing of them is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.pool import COLD, LivePool
from tests.small_disk import SmallDisk, mounted


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "state", 8 << 20) as disk:
        yield disk


async def test_a_run_waits_for_room_and_one_that_trains_goes_on(pool: LivePool, small_disk: SmallDisk) -> None:
    pool.start_worker(virtual_devices="2", **COLD)
    go = pool.folder / "go"
    trains = await pool.submit("train", hold=str(go))
    await pool.until_noted(trains)
    small_disk.fill()
    waits = await pool.submit("train")
    state = await pool.until(waits, "AwaitingGpu")
    # It may have been about to begin as the disk filled up, and then "gave way".
    assert "the disk of the worker's state folder is full" in (state.message or "").lower()
    go.touch()
    await pool.until(trains, "Completed")
    small_disk.make_room()
    await pool.until(waits, "Completed")
    assert pool.noted("finished") == {str(trains): 1, str(waits): 1}
