"""A run that asked for a range of devices gets another number of them while it trains, and stays the same run."""

from __future__ import annotations

from pathlib import Path

from tests.live.pool import LivePool, eventually
from tests.live.test_preemption import result_of, undisturbed

STEPS = 5_000  # more than are needed until it was measured on one device and moved to two, also on a busy machine


async def test_a_run_grows_into_a_free_device_and_loses_no_step(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices="2")
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    run = await pool.submit(
        "carries_on",
        job_variables={"gpus": 1, "max_gpus": 2},
        trace=str(trace),
        steps=STEPS,
        step_s=0.16,
        hurry=str(hurry),
    )

    async def grown() -> bool:
        return trace.exists() and trace.read_text().endswith(" 2\n")

    await eventually(grown, "steps on two devices")
    hurry.touch()
    assert (await pool.until(run)).is_completed()
    assert result_of(trace) == undisturbed(STEPS)
    lines = [line.split() for line in trace.read_text().splitlines()]
    devices = [int(line[3]) for line in lines]
    assert devices[0] == 1 and devices[-1] == 2, "it grew"
    assert sorted({int(line[0]) for line in lines}) == list(range(STEPS))
    names = await pool.names(run)
    assert names.count("Completed") == 1 and names.count("Running") == len({line[2] for line in lines}), names
    [row] = await pool.rows([run])
    assert row.outcome == "completed" and len(row.devices) == 2
