"""Who searches: our sweep, and plain Optuna as people write it, in our pool and with Prefect's process worker."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import optuna
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.futures import PrefectFlowRunFuture

from benchmarks._host.served import settings
from benchmarks.search import flows
from benchmarks.search.problems import SPACES, STEPS
from prefect_gpu import asha, gpu, sweep
from prefect_gpu.lab.sandbox import Process, Sandbox
from prefect_gpu.sweeps.space import distribution

OURS, PROCESS = "gpus", "process"  # names of the pools
DEVICES = 2
PARALLEL = DEVICES + 2  # two more are prepared ahead, where the pool can do that
POLL = "0.5"  # seconds between the process worker's questions; its default is 10
_PRELOAD = "torch,optuna,sklearn.ensemble,sklearn.datasets,sklearn.model_selection,sqlalchemy"
_OPEN = (StateType.RUNNING, StateType.PENDING, StateType.SCHEDULED, StateType.CANCELLING)


@dataclass(frozen=True)
class Size:
    """How much is searched.

    Attributes:
        seconds: Of each search.
        steps: Of each full training.
        trials: At most.
    """

    seconds: float = 150.0
    steps: int = STEPS
    trials: int = 1000


@dataclass(frozen=True)
class Curve:
    """A search.

    Attributes:
        better: Seconds since its start and the best validation loss so far, each time that it got better.
        trials: How many trained, also those that ended after its time.
        steps: Of all of them together.
    """

    better: tuple[tuple[float, float], ...]
    trials: int
    steps: int

    @property
    def loss(self) -> float:
        """The best at the end."""
        return self.better[-1][1] if self.better else float("inf")

    def reached(self, loss: float) -> float:
        """Seconds until a loss as good as this; infinite if it never was."""
        return next((at for at, found in self.better if found <= loss), float("inf"))


def start_workers(sandbox: Sandbox) -> dict[str, Process]:
    """A worker of each pool, with as many devices, or runs at a time."""
    ours = settings(virtual_devices=str(DEVICES), preload=_PRELOAD, page="false")
    process = {"PREFECT_WORKER_QUERY_SECONDS": POLL}
    return {
        OURS: sandbox.start_worker(OURS, env=ours, wait=False),
        PROCESS: sandbox.start_worker(PROCESS, "--limit", str(DEVICES), env=process, wait=False),
    }


def ours(problem: str, seed: int, size: Size, folder: Path, _: UUID) -> None:
    """Our sweep: rungs with promotion, and the learned cost in the choice of who is promoted or begins."""
    sweep(
        gpu(work_pool=OURS)(getattr(flows, problem)),
        SPACES[problem],
        trials=size.trials,
        parallel=PARALLEL,
        timeout=size.seconds,
        sampler=optuna.samplers.TPESampler(seed=seed),
        rungs=asha(),
        fixed={"trace": str(folder / "trace"), "steps": size.steps},
        storage=f"sqlite:///{folder / 'study.db'}",
        name="search",
    )


def plain(problem: str, seed: int, size: Size, folder: Path, deployment: UUID) -> None:
    """Optuna's ``optimize`` with its defaults, TPE and the median pruner, whose objective is a flow run."""
    storage = f"sqlite:///{folder / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="search", sampler=optuna.samplers.TPESampler(seed=seed))
    space = {name: distribution(name, asked) for name, asked in SPACES[problem].items()}

    def objective(trial: optuna.Trial) -> float:
        parameters = {name: trial._suggest(name, one) for name, one in space.items()}
        about = [storage, "search", trial._trial_id]
        fixed = {"trace": str(folder / "trace"), "steps": size.steps, "plain": about}
        with get_client(sync_client=True) as client:
            run = client.create_flow_run_from_deployment(deployment, parameters={**parameters, **fixed})
        loss = PrefectFlowRunFuture[Any](run.id).result()
        if study.trials[trial.number].user_attrs.get("pruned"):
            raise optuna.TrialPruned
        return float(loss)

    here = copy_context()  # Optuna's threads know nothing of this process's settings of Prefect
    study.optimize(
        lambda trial: here.copy().run(objective, trial), n_trials=size.trials, timeout=size.seconds, n_jobs=PARALLEL
    )


CONTENDERS: dict[str, tuple[Callable[[str, int, Size, Path, UUID], None], str]] = {
    "ours": (ours, OURS),
    "plain": (plain, OURS),
    "process": (plain, PROCESS),
}


def searched(name: str, problem: str, seed: int, size: Size, folder: Path, deployment: UUID) -> Curve:
    """One search, and its curve until its time is over; the runs that it still has are waited for."""
    folder.mkdir(parents=True)
    (folder / "trace").touch()
    begin = time.time()
    CONTENDERS[name][0](problem, seed, size, folder, deployment)
    while _open_runs():
        time.sleep(0.2)
    return read_curve(folder / "trace", begin, size.seconds)


def read_curve(trace: Path, begin: float, seconds: float) -> Curve:
    """What the trainings noted."""
    notes = sorted(json.loads(line) for line in trace.read_text().splitlines())
    better: list[tuple[float, float]] = []
    inside = [note for note in notes if note[0] - begin <= seconds]
    for at, loss, *_ in inside:
        if not better or loss < better[-1][1]:
            better.append((round(at - begin, 2), loss))
    return Curve(tuple(better), sum(number == 0 for _, _, number, _ in notes), len(notes))


def _open_runs() -> int:
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(_OPEN))))
    with get_client(sync_client=True) as client:
        return len(client.read_flow_runs(flow_run_filter=wanted, limit=5))


def load() -> float:
    """Of the machine, in the last minute."""
    return round(os.getloadavg()[0], 1)
