"""Deadlines that are promised are kept, those that cannot be are refused at once, and runs end at their time limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.live.pool import LivePool, eventually
from tests.live.test_preemption import STEPS, result_of, steps_of, undisturbed


async def test_a_promise_is_kept_a_refused_run_never_starts_and_a_limit_ends_a_run(
    pool: LivePool, tmp_path: Path
) -> None:
    pool.start_worker(virtual_devices="1")
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    owners = {"ada": {"preemptible": True}, "bob": {"deadline_kind": "promise", "time_limit": "60s"}}
    slow = {"steps": STEPS, "step_s": 0.4, "hurry": str(hurry)}
    long = await pool.submit("carries_on", job_variables=owners["ada"], trace=str(trace), **slow)

    async def trains() -> bool:
        return len(steps_of(trace)) > 5

    await eventually(trains, "the first run's training")

    async def asked(deadline: str) -> str:
        """What the pool would answer to whoever submits nothing."""
        return await pool.command("estimate", "train", "--new", "--deadline", deadline, "-jv", "time_limit=60s")

    assert "would refuse" in (said := await asked("30s")) and "The earliest that it would promise now is 20" in said
    assert "would promise" in (said := await asked("10min")) and "with 90%" in said, said
    refused = await pool.submit("train", job_variables=owners["bob"] | {"deadline": "30s"})
    state = await pool.until(refused)
    assert (state.type.value, state.name) == ("CANCELLED", "Refused"), state
    assert "The earliest that could be promised now is 20" in (state.message or ""), state
    kept = await pool.submit(
        "train", job_variables=owners["bob"] | {"deadline": "75s"}
    )  # the worker may be slow to hear
    assert (await pool.until(kept)).is_completed()

    async def promised() -> Any:
        return (await pool.read(kept)).labels.get("prefect-gpu.promised")

    assert await eventually(promised, "the label of the promise, which a short run need not wait for") == 0.9
    assert len(steps_of(trace)) < STEPS, "it was to be stopped for the promise"

    await eventually(trains, "the first run's second launch")
    hurry.touch()
    assert (await pool.until(long)).is_completed() and result_of(trace) == undisturbed(STEPS)
    assert not pool.noted()[str(refused)] and pool.noted()[str(long)] == 2
    other, wait = tmp_path / "other", tmp_path / "wait"
    limited = {"preemptible": True, "time_limit": "3s"}
    over = await pool.submit(
        "carries_on", job_variables=limited, trace=str(other), steps=STEPS, step_s=0.12, hurry=str(wait)
    )
    state = await pool.until(over)
    assert (state.type.value, state.name) == ("FAILED", "TimedOut"), state
    assert state.message == "Its time limit of 3 s is reached."
    [row, late] = await pool.rows([kept, over])
    assert row.promised == 0.9 and row.deadline_at is not None and row.ended_at < row.deadline_at
    assert late.outcome == "failed" and 0 < len(steps_of(other)) < STEPS
