"""The clock of the machine of a worker and its runs is set, or the machine sleeps; that of Prefect goes on."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from tests.live.pool import LivePool, eventually
from tests.live.test_two_workers import start_leased

pytestmark = pytest.mark.full
HOUR = 3600.0
ROOT = Path(__file__).parents[2]


def set_clock(file: Path, by_s: float, slept_s: float) -> None:
    """The clock is set, or the machine wakes up."""
    aside = file.with_suffix(".tmp")
    aside.write_text(f"{by_s} {slept_s}")
    aside.replace(file)


@pytest.mark.parametrize(
    ("by_s", "slept_s"),
    [
        pytest.param(-HOUR, 0.0, id="set back"),
        pytest.param(0.0, 8 * HOUR, id="suspended"),
    ],
)
async def test_runs_are_followed_and_take_as_long_as_they_take(
    by_s: float, slept_s: float, pool: LivePool, tmp_path: Path
) -> None:
    clock, hurry = tmp_path / "clock", tmp_path / "hurry"
    path = os.pathsep.join([str(Path(__file__).with_name("set_clock")), str(ROOT)])
    pool.state_dir = pool.folder / "only"
    began = time.monotonic()
    told_runs = {"PREFECT_INTEGRATIONS_GPU_PASS_ENVIRONMENT": "NOTES,PYTHONPATH,SET_CLOCK"}
    worker = start_leased(pool, "only", PYTHONPATH=path, SET_CLOCK=str(clock), **told_runs)
    parameters = {"trace": str(tmp_path / "trace"), "steps": 5000, "hurry": str(hurry)}
    run_id = await pool.submit("carries_on", **parameters)
    log = pool.state_dir / "events" / f"{pool.name}.jsonl"

    def told() -> int:
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return sum(one.get("event") == "LossReported" for one in events)

    async def more_than(count: int) -> None:
        async def more() -> bool:
            return told() > count

        await eventually(more, "a loss that the scheduler is told of")

    await more_than(1)
    waiting = await pool.submit("train")
    await pool.until(waiting, "AwaitingGpu")
    set_clock(clock, by_s, slept_s)
    if slept_s:  # its lease ran out while it slept, and nobody else has come
        await asyncio.to_thread(worker.wait_for_output, "adopted it")
    await more_than(told() + 1)
    hurry.touch()
    assert (await pool.until(run_id)).name == "Completed"
    assert (await pool.until(waiting)).name == "Completed"
    took_s = time.monotonic() - began
    for row in await pool.rows([run_id, waiting]):
        spans = (row.waited_s, row.prepared_s, row.trained_s, row.saved_s)
        assert all(0.0 <= (span or 0.0) <= took_s for span in spans), spans
        assert abs(row.ended_at - (time.time() + by_s + slept_s)) < took_s, "what is kept is what the clock shows"
    assert pool.noted() == {str(run_id): 1, str(waiting): 1}
