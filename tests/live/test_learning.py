"""The pool learns: what finished runs needed is expected of the next ones, shown to their owners and corrected."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from uuid import UUID

from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
    LogFilter,
    LogFilterFlowRunId,
)

from prefect_gpu.storage.history import HistoryRow
from tests.live.pool import LivePool, eventually
from tests.live.test_expected import even, seconds_from, until_expected

_END = re.compile(r"Now expected to end at \*\*(?:\S{10} )?(\d\d:\d\d(?::\d\d)?)\*\*")
_HALF_A_DAY_S = 43200.0


async def page(pool: LivePool, key: str, run_id: UUID | None = None) -> str:
    """The text of an artifact; empty if there is none."""
    of_run = None if run_id is None else ArtifactFilterFlowRunId(any_=[run_id])
    wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[key]), flow_run_id=of_run)
    found = await pool.client.read_artifacts(artifact_filter=wanted)
    return str(found[0].data) if found else ""


async def until_end(pool: LivePool, run_id: UUID, later_than: str | None = None) -> str:
    """When the run's page expects it to end, once it does; later than another time of day, if one is given."""

    async def told() -> str | None:
        match = _END.search(await page(pool, "paced-estimate", run_id))
        if match is None:
            return None
        end = match[1] if len(match[1]) == 8 else f"{match[1]}:00"
        return end if later_than is None or 2 <= seconds_from(later_than, end) < _HALF_A_DAY_S else None

    end: str = await eventually(told, f"an expected end of {run_id}")
    return end


async def until_logged(pool: LivePool, run_id: UUID, text: str) -> None:
    async def logged() -> bool:
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
        return any(text in log.message for log in await pool.client.read_logs(wanted, limit=200))

    await eventually(logged, f"{text!r} in the log of {run_id}")


async def test_what_finished_runs_needed_is_expected_shown_and_corrected(pool: LivePool, tmp_path: Path) -> None:
    pace = tmp_path / "pace"
    with pool.history_of_runs() as history:
        for steps in (10, 15, 20, 25, 30, 35):
            history.record(even("paced", {"pace": str(pace), "steps": steps, "trace": ""}, ended_at=steps, step_s=0.1))
    worker = pool.start_worker(virtual_devices="1")
    worker.wait_for_output("Learned from 6 finished runs of 1 program")

    # Many times slower than they were, and no parameter says so. It must not end before it has been looked at.
    pace.write_text("5.0")
    run_id = await pool.submit("paced", pace=str(pace), steps=35)
    await pool.until_noted(run_id)
    later = [await pool.submit("paced", pace=str(pace), steps=35) for _ in range(2)]
    await until_logged(pool, run_id, "Expected: training ")
    first_end = await until_end(pool, run_id)
    start, end = await until_expected(pool, *later)  # the other one may be prepared already
    assert 1 <= seconds_from(start, end) < 60, "it is expected to take about as long as those before"

    pace.write_text("12.0")  # slower still
    await until_end(pool, run_id, later_than=first_end)
    await until_logged(pool, run_id, "times as long per step as expected from 6 finished runs of paced")
    assert "Estimated from 6 finished runs of paced." in await page(pool, "paced-estimate", run_id)

    pace.write_text("0.0")
    for each in (run_id, *later):
        await pool.until(each, "Completed")
    [row] = await pool.rows([run_id])
    assert row.estimate["from_runs"] == 6 and row.trained_s is not None
    _, _, high = row.estimate["training_s"]
    assert row.trained_s > high, "it took longer than could be expected"
    assert "| measured |" in await page(pool, "paced-estimate", run_id)

    async def judged() -> bool:
        return "| paced |" in await page(pool, f"gpu-estimates-{pool.name}")

    await eventually(judged, "the page of how good estimates have been")
    worker.wait_for_output("Learned from 9 finished runs of 1 program")


async def test_a_worker_that_is_told_not_to_learn_estimates_nothing(pool: LivePool) -> None:
    with pool.history_of_runs() as history:
        history.record(HistoryRow("known", "train", "completed", ended_at=1.0, trained_s=1.0))
    worker = pool.start_worker(virtual_devices="1", learn="false")
    for steps in (3, 4):
        run_id = await pool.submit("train", steps=steps)
        [row] = await pool.rows([run_id])
        assert row.estimate == {}
        assert await page(pool, "train-estimate", run_id) == ""
        assert float(await page(pool, "train-progress", run_id)) == 100, "the rest of its page is there"
    assert "Learned from" not in worker.output


async def test_a_corrupt_row_does_not_stop_the_pool_from_learning(pool: LivePool) -> None:
    with pool.history_of_runs() as history:
        for name in ("good", "bad"):
            history.record(HistoryRow(name, "train", "completed", ended_at=1.0, trained_s=1.0))
    connection = sqlite3.connect(pool.state_dir / "history.db")
    with connection:
        connection.execute("UPDATE prefect_gpu_runs SET parameters = '{broken' WHERE run_id = 'bad'")
    connection.close()
    worker = pool.start_worker(virtual_devices="1")
    worker.wait_for_output("Learned from 1 finished run of 1 program")
    run_id = await pool.submit("train")
    [row] = await pool.rows([run_id])
    assert row.estimate["from_runs"] == 1
    worker.wait_for_output("Learned from 2 finished runs of 1 program")
