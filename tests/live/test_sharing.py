"""Runs that share a device: each is held to its part of the memory, and one that needs more does not harm the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.live.pool import LivePool, eventually

SHARES: dict[str, Any] = {"gpu_memory": "600MiB", "exclusive": False, "cpus": 1}
TOO_MUCH = 1000  # MiB


@pytest.mark.parametrize("how", ["raise", pytest.param("kill", marks=pytest.mark.full)])
async def test_a_run_that_needs_more_than_its_part_is_tried_again_alone(
    pool: LivePool, tmp_path: Path, how: str
) -> None:
    pool.start_worker(virtual_devices="1")
    losses, enough = tmp_path / "losses", tmp_path / "enough"
    neighbour = await pool.submit("steady", job_variables=SHARES, losses=str(losses), until=str(enough))
    await pool.until_noted(neighbour, "trains")
    greedy = await pool.submit("greedy", job_variables=SHARES, mebibytes=TOO_MUCH, how=how)
    await pool.until_noted(greedy, "refused")
    if how == "raise":  # the second try is in the same process: it waits there
        await eventually(lambda: _twice(pool, str(greedy)), "the second try")
    before = lines_of(losses)
    await eventually(lambda: _more(losses, before + 50), "the neighbour to train on")
    assert not pool.noted("finished"), "the greedy one waits for its turn, and the neighbour for nobody"
    third = await pool.submit("train", job_variables=SHARES)

    enough.touch()
    assert (await pool.until(neighbour)).name == "Completed"
    assert (await pool.until(greedy)).name == "Completed"
    assert (await pool.until(third)).name == "Completed"
    assert pool.noted("executed") == {str(neighbour): 1, str(greedy): 2, str(third): 1}
    assert pool.noted("refused") == {str(greedy): 1}
    order = [line.split()[1] for line in pool.notes.read_text().splitlines() if line.startswith("finished")]
    assert order.index(str(neighbour)) < order.index(str(greedy)), "it did not train before it was alone"

    [row, *_] = await pool.rows([neighbour])
    lines = [line.split() for line in losses.read_text().splitlines()]
    assert [(int(step), float(loss)) for step, loss in lines] == [(at, 1 / (at + 1)) for at in range(len(lines))]
    assert (row.steps_done, row.final_loss, row.outcome) == (len(lines), 1 / len(lines), "completed")
    assert (row.demoted_s, row.gate_wait_s, row.out_of_memory) == (None, None, False)
    assert "greedy" in row.neighbours
    *_, last = await pool.rows([greedy], attempts=2 if how == "kill" else 1)
    assert last.rss_peak_bytes is not None and last.rss_peak_bytes > TOO_MUCH * 2**20


async def test_runs_that_hold_each_other_up_take_turns_and_their_programs_do_not_meet_again(
    pool: LivePool, tmp_path: Path
) -> None:
    worker = pool.start_worker(virtual_devices="1")
    pace, slow, steps = tmp_path / "pace", tmp_path / "slow", tmp_path / "steps"
    pace.write_text("0.02")
    slow.write_text("0.1")
    steps.touch()
    older = await pool.submit("paced", job_variables=SHARES, pace=str(pace), steps=10**6, trace=str(steps))
    await eventually(lambda: _more(steps, 300), "it to have shown its speed alone")
    younger = await pool.submit("paced", job_variables=SHARES, pace=str(slow), steps=200)
    await pool.until(younger, "Training")
    pace.write_text("0.2")  # as if the device had not enough for two
    await pool.until_weight(younger, 0.0)
    await pool.cancel(older)
    await pool.until(older, "Cancelled")
    slow.write_text("0.01")
    assert (await pool.until(younger)).name == "Completed", "it trains on when the other is gone"
    slowed, paused = await pool.rows([older, younger])
    assert slowed.slowdowns["paced"] > 2.0
    assert (paused.steps_done, paused.demoted_s is None) == (200, False)

    await asyncio.to_thread(worker.terminate)
    pool.start_worker(virtual_devices="1").wait_for_output("Learned from")
    pace.write_text("0.02")
    again = await pool.submit("paced", job_variables=SHARES, pace=str(pace), steps=10**6)
    await pool.until(again, "Training")
    apart = await pool.submit("paced", job_variables=SHARES, pace=str(pace), steps=1)
    other = await pool.submit("train", job_variables=SHARES)
    assert (await pool.until(other)).name == "Completed", "a run of another program may join it"
    assert pool.noted()[str(apart)] == 0
    await pool.cancel(again)
    assert (await pool.until(apart)).name == "Completed"


def lines_of(file: Path) -> int:
    return len(file.read_text().splitlines())


async def _twice(pool: LivePool, run_id: str) -> bool:
    return pool.noted("executed")[run_id] == 2


async def _more(losses: Path, count: int) -> bool:
    return lines_of(losses) > count
