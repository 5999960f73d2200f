"""A waiting run of a known program shows when it is expected to start and to end, and the message follows the queue."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect_gpu.estimation.runs import MARKS
from prefect_gpu.storage.history import HistoryRow
from tests.live.pool import DEADLINE_S, LivePool, eventually

_AT_GATE = re.compile(
    r"It trains when \S+ has stopped training: expected at (?:\S{10} )?(\d\d:\d\d:\d\d) \S+ \(.*\)\.$"
)
_EXPECTED = re.compile(
    r"Expected to start at (?:\S{10} )?(\d\d:\d\d:\d\d) \S+ \(.*\) and to end at (?:\S{10} )?(\d\d:\d\d:\d\d)\."
    r" Others may overtake it until .*\.$"
)
HALF_A_DAY_S = 43200.0


async def until_expected(pool: LivePool, *run_ids: UUID, later_than: str | None = None) -> tuple[str, str]:
    """(start, end) as one run's newest message tells them, once it does; a later start than that, if one is given."""

    async def found() -> tuple[str, str] | None:
        for run in await pool.read_all(run_ids):
            match = _EXPECTED.search((run.state and run.state.message) or "")
            if match and (later_than is None or 1 <= seconds_from(later_than, match[1]) < HALF_A_DAY_S):
                return match[1], match[2]
        return None

    try:
        times: tuple[str, str] = await eventually(found, f"an expected start of one of {run_ids}")
    except AssertionError as error:
        said = [[state.message for state in await pool.history(run_id)] for run_id in run_ids]
        raise AssertionError(f"{error}; they say {said}\n{pool.workers[-1].output}") from None
    return times


async def until_prepared(pool: LivePool, *run_ids: UUID, later_than: str | None = None) -> tuple[UUID, str]:
    """Which of the runs is prepared, and when it is expected to train, as its newest message tells once it does.

    On a busy machine Prefect's events may come late, and so whoever was submitted first need not be the first that the
    worker hears of.
    """

    async def found() -> tuple[UUID, str] | None:
        for run in await pool.read_all(run_ids):
            match = _AT_GATE.search((run.state and run.state.message) or "")
            if match and (later_than is None or 1 <= seconds_from(later_than, match[1]) < HALF_A_DAY_S):
                return run.id, match[1]
        return None

    try:
        prepared: tuple[UUID, str] = await eventually(found, "a prepared run that says when it trains")
    except AssertionError as error:
        said = [[(state.name, state.message) for state in await pool.history(run_id)] for run_id in run_ids]
        raise AssertionError(f"{error}; they say {said}\n{pool.workers[-1].output}") from None
    return prepared


def seconds_from(first: str, second: str) -> float:
    """Seconds from one time of day to the next such time of day."""
    one, other = (datetime.strptime(time_of_day, "%H:%M:%S") for time_of_day in (first, second))
    return (other - one).total_seconds() % (2 * HALF_A_DAY_S)


def even(flow_name: str, parameters: dict[str, Any], *, ended_at: float, step_s: float) -> HistoryRow:
    """A run whose steps all took as long. On a busy machine one of six real ones may take many times as long as the
    others; nothing that a later run needs is then beyond what may be expected."""
    steps = parameters["steps"]
    trained_s = steps * step_s
    return HistoryRow(
        f"even-{ended_at:g}",
        flow_name,
        "completed",
        ended_at=ended_at,
        parameters=parameters,
        features={"features": {"steps": steps}},
        prepared_s=1.0,
        trained_s=trained_s,
        saved_s=0.1,
        steps_done=steps,
        pace={str(mark): trained_s * mark / 100.0 for mark in MARKS},
    )


async def test_runs_behind_a_known_program_show_when_they_are_expected(pool: LivePool, tmp_path: Path) -> None:
    parameters = {"step_s": 0.1, "hold": None, "saving_s": 0.0, "hold_saving": None}
    with pool.history_of_runs() as history:
        for ended_at, steps in enumerate((20, 150, 20, 150), start=1):  # what the pool learns from
            history.record(even("train", {"steps": steps, **parameters}, ended_at=float(ended_at), step_s=0.1))
    worker = pool.start_worker(virtual_devices="1")
    # What is learned after a run has begun to train is not told of one that does no step.
    worker.wait_for_output("Learned from 4 finished runs", timeout_s=DEADLINE_S)
    # The next one is expected to train for 15 s: long enough for the others to be there before. It holds in its first.
    holder = await pool.submit("train", steps=150, step_s=0.1, hold=str(tmp_path / "go"))
    await pool.until_noted(holder)
    behind = [await pool.submit("train", steps=20, step_s=0.1) for _ in range(3)]
    ahead, prepared = await until_prepared(pool, *behind)
    first, second = (run_id for run_id in behind if run_id != ahead)
    start, end = await until_expected(pool, first)
    assert 1 <= seconds_from(start, end) < 60, "it is expected to take about as long as those of as many steps"

    async def follow() -> bool:  # what one of them shows may be older than what the other does
        one, _ = await until_expected(pool, first)
        other, _ = await until_expected(pool, second)
        return 1 <= min(seconds_from(one, other), seconds_from(other, one)) < 120

    await eventually(follow, "expected starts that follow each other")
    # The holder is over its time, and all that wait are told.
    await until_expected(pool, first, later_than=start)
    await until_prepared(pool, ahead, later_than=prepared)
    (tmp_path / "go").touch()
    for run_id in behind:
        await pool.until(run_id, "Completed")
