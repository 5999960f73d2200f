"""The pool learns: what finished runs needed is expected of the next ones, shown to their owners and corrected.

So is when a waiting run is expected to start and to end; the message follows the queue.
"""

from __future__ import annotations

import re
import sqlite3
from datetime import datetime
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

_AT_GATE = re.compile(
    r"It trains when \S+ has stopped training: expected at (?:\S{10} )?(\d\d:\d\d:\d\d) \S+ \(.*\)\.$"
)
_EXPECTED = re.compile(
    r"Expected to start at (?:\S{10} )?(\d\d:\d\d:\d\d) \S+ \(.*\) and to end at (?:\S{10} )?(\d\d:\d\d:\d\d)\.$"
)
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


async def until_expected(pool: LivePool, run_id: UUID, later_than: str | None = None) -> tuple[str, str]:
    """(start, end) as the run's newest message tells them, once it does; a later start than that, if one is given."""

    async def found() -> tuple[str, str] | None:
        state = (await pool.read(run_id)).state
        match = _EXPECTED.search((state and state.message) or "")
        if match is None or (later_than is not None and not 1 <= seconds_from(later_than, match[1]) < _HALF_A_DAY_S):
            return None
        return match[1], match[2]

    try:
        times: tuple[str, str] = await eventually(found, f"an expected start of {run_id}")
    except AssertionError as error:
        said = [state.message for state in await pool.history(run_id)]
        raise AssertionError(f"{error}; it says {said}\n{pool.workers[-1].output}") from None
    return times


async def until_prepared(pool: LivePool, run_id: UUID, later_than: str | None = None) -> str:
    """When the prepared run is expected to train, as its newest message tells; a later time, if one is given."""

    async def found() -> str | None:
        state = (await pool.read(run_id)).state
        match = _AT_GATE.search((state and state.message) or "")
        late_enough = match and (later_than is None or 1 <= seconds_from(later_than, match[1]) < _HALF_A_DAY_S)
        return match[1] if match and late_enough else None

    start: str = await eventually(found, f"what the prepared {run_id} waits for")
    return start


def seconds_from(first: str, second: str) -> float:
    """Seconds from one time of day to the next such time of day."""
    one, other = (datetime.strptime(time_of_day, "%H:%M:%S") for time_of_day in (first, second))
    return (other - one).total_seconds() % (2 * _HALF_A_DAY_S)


async def until_logged(pool: LivePool, run_id: UUID, text: str) -> None:
    async def logged() -> bool:
        wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run_id]))
        return any(text in log.message for log in await pool.client.read_logs(wanted, limit=200))

    await eventually(logged, f"{text!r} in the log of {run_id}")


async def test_what_finished_runs_needed_is_expected_shown_and_corrected(pool: LivePool, tmp_path: Path) -> None:
    pace = tmp_path / "pace"
    pace.write_text("0.1")
    worker = pool.start_worker(virtual_devices="1")
    before = [await pool.submit("paced", pace=str(pace), steps=steps) for steps in (10, 15, 20, 25, 30)]
    for run_id in before:
        await pool.until(run_id, "Completed")
    worker.wait_for_output("Learned from 5 finished runs of 1 program")

    pace.write_text("1.0")  # ten times slower than they were, and no parameter says so
    run_id = await pool.submit("paced", pace=str(pace), steps=35)
    await pool.until_noted(run_id)
    prepared, behind, last = [await pool.submit("paced", pace=str(pace), steps=35) for _ in range(3)]
    await until_logged(pool, run_id, "Expected: training ")
    first_end = await until_end(pool, run_id)
    at_gate = await until_prepared(pool, prepared)
    start, end = await until_expected(pool, behind)
    assert 1 <= seconds_from(start, end) < 60, "it is expected to take about as long as those before"

    async def follow() -> bool:  # what one of them shows may be older than what the other does
        before, _ = await until_expected(pool, behind)
        after, _ = await until_expected(pool, last)
        return 1 <= seconds_from(before, after) < 120

    await eventually(follow, "expected starts that follow each other")

    pace.write_text("3.0")  # slower still, and all that wait are told
    await until_end(pool, run_id, later_than=first_end)
    await until_expected(pool, behind, later_than=start)
    await until_prepared(pool, prepared, later_than=at_gate)
    await until_logged(pool, run_id, "times as long per step as expected from 5 finished runs of paced")
    assert "Estimated from 5 finished runs of paced." in await page(pool, "paced-estimate", run_id)

    pace.write_text("0.0")
    for each in (run_id, prepared, behind, last):
        await pool.until(each, "Completed")
    [row] = await pool.rows([run_id])
    assert row.estimate["from_runs"] == 5 and row.trained_s is not None
    _, _, high = row.estimate["training_s"]
    assert row.trained_s > high, "it took longer than could be expected"
    assert "| measured |" in await page(pool, "paced-estimate", run_id)

    async def judged() -> bool:
        return "| paced |" in await page(pool, f"gpu-estimates-{pool.name}")

    await eventually(judged, "the page of how good estimates have been")


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
