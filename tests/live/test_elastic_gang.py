"""A gang that asked for a range of workers starts with what is free, grows when others end, and stays the same run."""

from __future__ import annotations

from pathlib import Path

from tests.live.pool import LivePool, eventually
from tests.live.test_preemption import result_of, undisturbed

STEPS = 5_000  # more than are needed until it was measured alone and grew, also on a busy machine


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
        step_s=0.24,
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


async def test_the_batch_grows_with_the_devices_where_the_gradient_is_noisy(pool: LivePool, tmp_path: Path) -> None:
    pool.start_worker(virtual_devices="4")
    hurry = tmp_path / "hurry"
    # A sample's variance over the squared norm, (3 + 1000)²: about 140 samples, and 0.0016.
    spreads = {"noisy": 12_000.0, "quiet": 40.0}
    asked = {"workers": 1, "max_workers": 2, "batch_size": 16, "max_batch_size": 256}
    runs = [
        await pool.submit(
            "learns_together", job_variables=asked, trace=str(tmp_path / name), spread=spread, hurry=str(hurry)
        )
        for name, spread in spreads.items()
    ]

    def steps(name: str) -> list[tuple[int, int, int]]:
        """Of each that was noted: its number, the instances, and the batch."""
        lines = (tmp_path / name).read_text().splitlines()[:-1] if (tmp_path / name).exists() else []
        return [(int(step), int(count), int(batch)) for step, count, batch in map(str.split, lines)]

    async def both_grew() -> bool:
        return all(len([count for _, count, _ in steps(name) if count == 2]) > 20 for name in spreads)

    await eventually(both_grew, "twenty steps of two instances of each")
    hurry.touch()
    for run in runs:
        assert (await pool.until(run)).is_completed()
    noisy, quiet = steps("noisy"), steps("quiet")
    assert {batch for _, count, batch in noisy + quiet if count == 1} == {16}, "nothing is known when they start"
    assert {batch for _, _, batch in quiet} == {16}, "more samples would bring nothing"
    [grown] = {batch for _, count, batch in noisy if count == 2}
    assert 16 < grown <= 256 and grown % 2 == 0
    first, *_, last = (step for step, count, _ in noisy if count == 2)
    further = (last - first) / (len([count for _, count, _ in noisy if count == 2]) - 1)
    assert 1 < further <= grown / 16, (
        "a step is worth more than with the smallest batch, at most as much as it is larger"
    )
    [row] = await pool.rows([runs[0]])
    assert row.outcome == "completed" and row.features["batch_size"] == grown
    assert {"1@16", f"2@{grown}", "noise"} <= set(row.features["speeds"])
    assert row.features["speeds"]["noise"][0] > 10
