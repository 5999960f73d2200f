"""Real trainings in a real pool: some teach how long they take, the others come by chance, and half want promises."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun

from benchmarks._claims import Claim, at_least, at_most
from benchmarks._host.served import deploy, read_runs, served, settings
from benchmarks.promises.training import STEP_S
from prefect_gpu.lab.sandbox import Process, Sandbox
from prefect_gpu.storage.history import History
from prefect_gpu.worker.deadlines.promising import PROMISED, REFUSED

_POOL = "gpus"
_FLOW = Path(__file__).with_name("training.py")
_DEADLINE_S = 1200.0
_STEPS = (20, 40, 60, 80)
WITHIN_S, _LOGS_S = 1.0, 10
_START_S = 4.0
"""What users of such a pool expect a start to take, beside the training."""


class Submitted:
    """One run of the benchmark.

    Attributes:
        wants: Whether its deadline is to be promised.
    """

    def __init__(self, run: FlowRun, wants: bool) -> None:
        self.id, self.wants, self.created = run.id, wants, run.created


async def submit(client: PrefectClient, deployment: UUID, steps: int, slack: float | None) -> Submitted:
    """Submit a training; with a slack, its deadline is so many times what it needs."""
    variables: dict[str, Any] = {"preemptible": True}
    if slack is not None:
        after = timedelta(seconds=slack * (steps * STEP_S + _START_S))
        deadline = (datetime.now(timezone.utc) + after).isoformat()
        variables |= {"deadline": deadline, "deadline_kind": "promise"}
    run = await client.create_flow_run_from_deployment(deployment, parameters={"steps": steps}, job_variables=variables)
    return Submitted(run, slack is not None)


async def ended(client: PrefectClient, runs: list[Submitted], worker: Process) -> list[FlowRun]:
    """All of them, once each has come to an end."""
    until = time.monotonic() + _DEADLINE_S
    while True:
        found = await read_runs(client, [run.id for run in runs])
        if all(run.state is not None and run.state.is_final() for run in found):
            return found
        if time.monotonic() > until or worker.popen.poll() is not None:
            raise TimeoutError(f"not all runs ended; the worker's log ends so:\n{worker.output[-3000:]}")
        await asyncio.sleep(1.0)


async def answered_s(client: PrefectClient, run: Submitted) -> float | None:
    """Seconds from a run's creation to its answer, which is in its log; None: there is none."""
    for _ in range(_LOGS_S):  # they are sent now and then
        logs = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
        at = [log.timestamp for log in logs if "deadline" in log.message and "promised" in log.message]
        if at and run.created is not None:
            return (min(at) - run.created).total_seconds()
        await asyncio.sleep(1.0)
    return None


async def run_all(box: Sandbox, quick: bool) -> tuple[list[Claim], dict[str, Any]]:
    """Teach, submit, wait, count."""
    chance = random.Random(20)
    teach, count = (4, 12) if quick else (16, 60)
    state_dir = box.folder / "state"
    worker = box.start_worker(_POOL, env=settings(virtual_devices="2", state_dir=str(state_dir), page="false"))
    async with get_client() as client:
        deployment = await deploy(_FLOW, "train", _POOL)
        teachers = [await submit(client, deployment, _STEPS[n % len(_STEPS)], None) for n in range(teach)]
        await ended(client, teachers, worker)
        print(f"{teach} runs have taught how long they take", file=sys.stderr, flush=True)
        await asyncio.sleep(5.0)  # until it is learned
        runs = []
        for number in range(count):
            slack = chance.uniform(1.5, 6.0) if number % 2 else None
            runs.append(await submit(client, deployment, chance.choice(_STEPS), slack))
            await asyncio.sleep(chance.expovariate(1 / 3.0))
        found = {run.id: run for run in await ended(client, runs, worker)}
        took = [one for run in runs if run.wants and (one := await answered_s(client, run)) is not None]
    worker.terminate(timeout_s=30)
    with History(f"sqlite:///{state_dir / 'history.db'}") as history:
        rows = {row.run_id: row for row in history.rows()}
    wanted = [run for run in runs if run.wants]
    refused = [run for run in wanted if found[run.id].state_name == REFUSED]
    promised = [run for run in wanted if PROMISED in found[run.id].labels]
    kept = 0
    for run in promised:
        row = rows.get(str(run.id))
        in_time = row is not None and row.deadline_at is not None and row.ended_at <= row.deadline_at
        kept += in_time and row is not None and row.outcome == "completed"
    in_a_second = sum(one <= WITHIN_S for one in took)
    others = [run for run in runs if not run.wants]
    lost = [run for run in others if found[run.id].state_name != "Completed"]
    details = {
        "runs": count,
        "wanted": len(wanted),
        "promised": len(promised),
        "refused": len(refused),
        "kept": kept,
        "answered_s": sorted(round(one, 3) for one in took),
    }
    claims = [
        at_least("live: kept of 100 promises", 100.0 * kept / max(1, len(promised)), 87.0),
        at_least("live: of those who asked, answered", len(promised) + len(refused), len(wanted)),
        at_most("live: answered within, median, s", sorted(took)[len(took) // 2] if took else 99.0, WITHIN_S),
        at_least("live: of 100 answers, within a second", 100.0 * in_a_second / max(1, len(wanted)), 95.0),
        at_most("live: other runs that did not complete", len(lost), 0.0),
    ]
    return claims, details


def measure(quick: bool) -> tuple[list[Claim], dict[str, Any]]:
    """The live part of the benchmark."""
    with served({_POOL: "gpu"}) as box:
        return asyncio.run(run_all(box, quick))
