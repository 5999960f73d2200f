"""A gang that asked for a range of workers starts with what is free, grows when others end, and stays the same run."""

from __future__ import annotations

from pathlib import Path

from tests.live.pool import LivePool, eventually
from tests.live.test_preemption import result_of, undisturbed

STEPS = 20_000  # more than are needed until it was measured alone and grew, also on a busy machine


async def test_a_gang_grows_when_another_run_ends_and_loses_no_step(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices="3")
    trace, hurry, hold = tmp_path / "trace", tmp_path / "hurry", tmp_path / "hold"
    other = await pool.submit("train", job_variables={"gpus": 2}, hold=str(hold))
    await pool.until_noted(other)
    run = await pool.submit(
        "carries_on_together",
        job_variables={"workers": 1, "max_workers": 3},
        trace=str(trace),
        steps=STEPS,
        step_s=0.06,
        hurry=str(hurry),
    )

    def instances() -> list[int]:
        lines = trace.read_text().splitlines() if trace.exists() else []
        return [int(line.split()[3]) for line in lines if line.count(" ") == 3]

    async def alone() -> bool:
        return instances()[-1:] == [1]

    async def grown() -> bool:
        return instances()[-1:] == [3]

    await eventually(alone, "steps of one instance")
    hold.touch()
    assert (await pool.until(other)).is_completed()
    await eventually(grown, "steps of three instances")
    hurry.touch()
    assert (await pool.until(run)).is_completed()
    assert result_of(trace) == undisturbed(STEPS)
    lines = [line.split() for line in trace.read_text().splitlines()]
    assert sorted({int(line[0]) for line in lines}) == list(range(STEPS)), "no step is left out"
    names = await pool.names(run)
    assert names.count("Completed") == 1 and names.count("Running") == len({line[2] for line in lines}), names
    [row] = await pool.rows([run])
    assert row.outcome == "completed" and len(row.devices) == len(row.parts) == 3
    assert row.steps_done == STEPS and set(row.features["speeds"]) == {"1", "3"}
