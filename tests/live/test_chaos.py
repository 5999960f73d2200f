"""Forty runs on two devices while everything around them fails: each ends exactly once."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from uuid import UUID

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import Abort

from prefect_gpu.lab.sandbox import wait_until
from prefect_gpu.storage.history import HistoryRow
from tests.live.pool import LivePool, eventually

RUNS, CANCELLED = 40, 10


@pytest.mark.full
@pytest.mark.timeout(1500)  # about 60 s on two quiet cores
async def test_runs_survive_killed_workers_a_server_restart_and_cancellations(pool: LivePool) -> None:
    chance = random.Random(7)
    deployment = await pool.deploy("train")
    runs: list[UUID] = []
    for number in range(RUNS):  # one after the other: with concurrent writes a server on SQLite takes far longer
        run = await pool.client.create_flow_run_from_deployment(
            deployment, parameters={"steps": 2, "step_s": 0.01}, name=f"run-{number}"
        )
        runs.append(run.id)
    worker = pool.start_worker(cancel_grace_seconds="5")
    doomed = chance.sample(runs, CANCELLED)
    to_cancel = list(doomed)

    async def ended() -> int:
        return sum(run.state.is_final() for run in await pool.read_all(runs) if run.state)

    async def cancel_some() -> None:
        """Cancels the doomed runs at random moments, as users do: while they wait, start, train, or are over."""
        while to_cancel:
            await asyncio.sleep(chance.uniform(0.0, 3.0))
            run_id = to_cancel.pop()
            try:
                await pool.cancel(run_id)
            except httpx.HTTPError:  # the server is being restarted: cancel it later
                to_cancel.append(run_id)
            except Abort:  # it is over
                pass

    cancelling = asyncio.create_task(cancel_some())
    milestones = [6, 14, 22, 30]
    for number, milestone in enumerate(milestones):

        async def reached(milestone: int = milestone) -> bool:
            return await ended() >= milestone

        await eventually(reached, f"{milestone} runs ended", deadline_s=400, every_s=1.0)
        if number == 2:
            await asyncio.to_thread(pool.sandbox.stop_server)
            await asyncio.to_thread(pool.sandbox.start_server)
        else:
            worker.kill()
            worker = pool.start_worker(wait=False, cancel_grace_seconds="5")
    await cancelling

    async def all_ended() -> bool:
        return await ended() == RUNS

    await eventually(all_ended, "all runs ended", deadline_s=600, every_s=1.0)

    final = {run.id: run for run in await pool.read_all(runs)}
    executed, finished = pool.noted("executed"), pool.noted("finished")
    assert all(count == 1 for count in executed.values()), "a run was executed twice"
    for run_id, run in final.items():
        assert run.state is not None
        if run.state.type is StateType.CANCELLED:
            assert run_id in doomed
        else:
            assert run.state.type is StateType.COMPLETED, (run.name, run.state, await pool.names(run_id))
            assert executed[str(run_id)] == finished[str(run_id)] == 1
    # A cancellation that came after the run's end finds it completed; none of the others may have completed.
    assert sum(run.state.type is StateType.CANCELLED for run in final.values() if run.state) > CANCELLED // 2
    wait_until(lambda: not pool.sandbox.runs_left(), what=f"processes are left: {pool.sandbox.runs_left()}")

    history = pool.history_of_runs()

    async def finalised() -> bool:
        return not list((pool.state_dir / "runs").iterdir())

    await eventually(finalised, "every launch finalised")
    rows = history.rows()
    history.close()
    assert len({row.run_id for row in rows}) == len(rows), "one row for each finished run"
    assert not await disagreements(pool, final.values(), rows)


async def disagreements(pool: LivePool, runs: Iterable[FlowRun], rows: Iterable[HistoryRow]) -> list[str]:
    """Runs whose end Prefect and the history do not tell alike, with all that may explain it."""
    recorded = {row.run_id: row for row in rows}
    found = []
    for run in runs:
        row = recorded.get(str(run.id))
        shown = run.state_type.value.lower() if run.state_type else None
        never_launched = row is None and shown == "cancelled"  # while it waited: that is no attempt
        if never_launched or (row is not None and row.outcome == shown):
            continue
        states = [f"{state.timestamp:%X.%f} {state.name}: {state.message}" for state in await pool.history(run.id)]
        said = [
            f"worker {number}: {line}"
            for number, worker in enumerate(pool.workers)
            for line in worker.output.splitlines()
            if run.name in re.findall(r"[\w-]+", line) or str(run.id) in line or "Error" in line
        ]
        found.append("\n".join([f"{run.name} is {shown}, its row is {row}", *states, *said]))
    return found
