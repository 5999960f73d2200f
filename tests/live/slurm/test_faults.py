"""Whatever happens to allocations, to Slurm and to the worker: a run ends once, with the result it would have had."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from tests.live.pool import LivePool, eventually
from tests.live.slurm.conftest import SlurmPool
from tests.live.test_preemption import STEPS, result_of, steps_of, undisturbed


async def train(pool: LivePool, trace: Path, hurry: Path, **more: object) -> UUID:
    parameters = {"trace": str(trace), "hurry": str(hurry), "steps": STEPS, "step_s": 0.12} | more
    return await pool.submit("carries_on", job_variables={"preemptible": True}, **parameters)


async def goes_on(trace: Path) -> None:
    """Wait until the run has trained on."""
    before = len(steps_of(trace))

    async def further() -> bool:
        return len(steps_of(trace)) > before + 5

    await eventually(further, "the run to train on")


async def test_a_run_outlives_its_allocations_its_agent_and_its_worker(slurm_pool: SlurmPool, tmp_path: Path) -> None:
    await slurm_pool.allow({"maximum": 1})
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    worker = slurm_pool.start_worker()
    run_id = await train(slurm_pool, trace, hurry)
    await goes_on(trace)
    [first] = slurm_pool.lab.queue()
    slurm_pool.lab.command("scancel", first)
    await goes_on(trace)
    [second] = slurm_pool.lab.queue()
    assert second != first
    await asyncio.to_thread(slurm_pool.lab.script, "controller-stop")
    await asyncio.to_thread(worker.kill)
    await goes_on(trace)
    worker = slurm_pool.start_worker()
    worker.wait_for_output("adopted it")
    await asyncio.to_thread(slurm_pool.lab.script, "controller-start")
    await goes_on(trace)
    assert slurm_pool.lab.queue() == [second]
    kill_agent(slurm_pool.state_dir)
    await goes_on(trace)
    hurry.touch()
    state = await slurm_pool.until(run_id)
    assert state.is_completed(), state
    assert result_of(trace) == undisturbed(STEPS)
    assert sorted(set(steps_of(trace))) == list(range(STEPS))
    assert len(await slurm_pool.rows([run_id])) == 1 and slurm_pool.noted("finished")[str(run_id)] == 1


def kill_agent(state_dir: Path) -> None:
    """Kill the one agent of the pool that there is, and not the process that guards it."""
    ours = [
        one
        for one in psutil.process_iter(["cmdline"])
        if any(str(state_dir / "slurm") in word for word in one.info["cmdline"] or ())
    ]
    [agent] = [one for one in ours if "srun" not in one.name() and one.parent() in ours and one.parent() is not None]
    agent.kill()


@pytest.mark.full
async def test_a_run_that_takes_longer_than_its_allocation_carries_on_in_the_next_one(
    slurm_pool: SlurmPool, tmp_path: Path
) -> None:
    await slurm_pool.allow({"maximum": 1, "time": "3"})
    trace, hurry = tmp_path / "trace", tmp_path / "hurry"
    slurm_pool.start_worker()
    run_id = await train(slurm_pool, trace, hurry)
    await goes_on(trace)
    [first] = slurm_pool.lab.queue()

    async def elsewhere() -> bool:
        return first not in slurm_pool.lab.queue() and bool(slurm_pool.lab.queue())

    await eventually(elsewhere, "the next allocation", deadline_s=240)
    await goes_on(trace)
    hurry.touch()
    state = await slurm_pool.until(run_id)
    assert state.is_completed(), state
    assert result_of(trace) == undisturbed(STEPS)
    states = await slurm_pool.history(run_id)
    assert any(f"the time of Slurm's job {first} is up" in (one.message or "") for one in states)
    assert "Crashed" not in await slurm_pool.names(run_id)
