"""Who runs the sweep, and one sweep from the start of its worker to its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient

from benchmarks._host.served import completed, deploy, recorded, settings
from benchmarks.sweep.figures import Marks, read_marks
from benchmarks.sweep.flows import ENV_FOLDER
from benchmarks.sweep.trainings import Training
from prefect_gpu.lab.sandbox import Sandbox

OURS, PROCESS = "gpus", "process"  # names of the pools
FASTEST_POLL = "0.5"  # each poll takes some of the host's one core; see --poll
_PRELOAD = "torch,xgboost,pandas"
_DEADLINE_S = 1800.0
_FLOWS = Path(__file__).with_name("flows.py")
WARM_UP_S = 12.0  # until a worker has learned, polled and filled its warm interpreter


@dataclass(frozen=True)
class Contender:
    """A worker of a pool, with its settings."""

    name: str
    pool: str
    about: str
    arguments: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)


def _ours(name: str, about: str, **off: str) -> Contender:
    """Our pool with everything on, but what is said otherwise."""
    return Contender(name, OURS, about, (), settings(**{"virtual_devices": "1", "preload": _PRELOAD, **off}))


def asking_every(poll: str, contender: Contender) -> Contender:
    """The same, asking Prefect for runs every so many seconds."""
    faster = {**contender.settings, "PREFECT_WORKER_QUERY_SECONDS": poll}
    return replace(contender, about=f"Prefect's process worker, asking every {poll} s", settings=faster)


CONTENDERS = (
    Contender("process", PROCESS, "Prefect's process worker, its defaults", ("--limit", "1")),
    asking_every(FASTEST_POLL, Contender("process-fast", PROCESS, "", ("--limit", "1"))),
    _ours("ours", "our pool, everything on"),
    _ours("no-prescheduling", "ours, no run is prepared behind another", prescheduling="false"),
    _ours("no-preload", "ours, only Prefect is imported beforehand", preload=""),
    _ours("no-warm-start", "ours, every run is a new interpreter", warm_start="false"),
    _ours("no-learning", "ours, nothing is estimated", learn="false"),
)


@dataclass(frozen=True)
class Sweep:
    """One contender's sweep: when all of it had been submitted began, and what the runs wrote."""

    submitted: float
    runs: list[Marks]


async def deployed(pools: tuple[str, ...]) -> dict[tuple[str, str], UUID]:
    """Deployments of both flows in these pools, by (flow, pool)."""
    flows = ("train_torch", "train_xgboost")
    return {(flow, pool): await deploy(_FLOWS, flow, pool) for flow in flows for pool in pools}


async def run_sweep(
    sandbox: Sandbox,
    client: PrefectClient,
    contender: Contender,
    deployments: dict[tuple[str, str], UUID],
    trainings: list[Training],
    folder: Path,
    *,
    history: Path | None = None,
    pause_s: float = WARM_UP_S,
) -> Sweep:
    """Start the contender's worker, submit everything at once, wait for the end, stop the worker.

    Args:
        folder: For this sweep alone; our pool's state is in ``state`` in it.
        history: Our pool begins with a copy of this one.
        pause_s: Seconds between the worker's start and the submission.

    Raises:
        SandboxError: A run failed, the worker died, or it takes longer than half an hour.
    """
    state = folder / "state"
    state.mkdir(parents=True)
    if history is not None:
        copy_history(history, state / "history.db")
    passed = settings(state_dir=str(state), pass_environment="SWEEP_*")
    env = {**contender.settings, ENV_FOLDER: str(folder), **passed}
    worker = sandbox.start_worker(contender.pool, *contender.arguments, name=folder.name, env=env)
    try:
        await asyncio.sleep(pause_s)
        submitted = time.monotonic()
        ids = []
        for training in trainings:  # in order: Prefect's worker takes the oldest first
            run = await client.create_flow_run_from_deployment(
                deployments[training.flow, contender.pool], parameters=training.parameters, name=training.name
            )
            ids.append(run.id)
        await completed(client, worker, ids, deadline_s=_DEADLINE_S, every_s=2.0)
        if contender.pool == OURS:
            await recorded(state, ids, worker)
    finally:
        worker.terminate(timeout_s=20.0)
    return Sweep(submitted, read_marks(folder))


def copy_history(source: Path, target: Path) -> None:
    """Copy a history, whole."""
    with (
        contextlib.closing(sqlite3.connect(source)) as reader,
        contextlib.closing(sqlite3.connect(target)) as writer,
    ):
        reader.backup(writer)


def keep_logs(sandbox: Sandbox, folder: Path) -> None:
    """Copy the logs of server and workers."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in sandbox.folder.glob("*.log"):
        shutil.copy(log, folder)


def enough_cores() -> bool:
    """Whether this machine has the two cores that the sweep is about."""
    return {0, 1} <= os.sched_getaffinity(0)
