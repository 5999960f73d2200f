"""Who plays the sweeps, each with a pool and a worker of its own, and what became of their runs."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from benchmarks._host.former import ROOT, former_version
from benchmarks._host.pool import notes
from benchmarks._host.served import deploy, read_runs, recorded, settings
from benchmarks.stoppable.trainings import DEVICES, STEP_S, Training, undisturbed
from prefect_gpu.estimation.runs import TRAINING_S
from prefect_gpu.lab.sandbox import Process, Sandbox, SandboxError
from prefect_gpu.worker.server.states import GAVE_WAY

BEFORE = "2ce5e70"
"""The last commit before runs that may be stopped were chosen as a whole: the release before issue 18."""
_FLOW = Path(__file__).with_name("flow.py")
_PRELOAD = "numpy,sklearn.datasets,benchmarks._elastic_training,prefect_gpu.training.channel.client"
_DEADLINE_S = 2400.0
_LOOK_S = 3.0


@dataclass(frozen=True)
class Contender:
    """A profile, and the commit whose package has it; None: this one."""

    name: str
    profile: str
    about: str
    commit: str | None = None


CONTENDERS = (
    Contender("adaptive", "adaptive", "the default profile"),
    Contender("srsf", "srsf", "shortest remaining service first, which stops runs as well"),
    Contender("before", "adaptive", "the default profile of the release before", BEFORE),
)


@dataclass(frozen=True)
class Passed:
    """One sweep under one contender; times in seconds.

    Attributes:
        mean_s: Mean time from a run's creation until Prefect has it Completed.
        p99_s: The 99th percentile of that.
        makespan_s: From the first creation until the last end.
        stops: How often runs gave way, all together.
        most_stops: How often the run did that gave way most.
        twice: Steps that were done twice.
        lost: Steps that are missing.
        different: Runs that completed, and whose result is not that of the undisturbed training.
        failed: Runs that did not complete. Their times count as if they had, which flatters.
        jct_s: From creation to end, of each run in the order of arrival.
        off: By how much the pool's estimate of the training time was off at submission, the median factor; None if
            nothing was estimated.
    """

    mean_s: float
    p99_s: float
    makespan_s: float
    stops: int
    most_stops: int
    twice: int
    lost: int
    different: int
    failed: int
    jct_s: tuple[float, ...]
    off: float | None


class Player:
    """A contender with its pool, its worker and its deployment.

    Args:
        folder: For this contender alone.
        package: Where its version of ``prefect_gpu`` is.
    """

    def __init__(self, contender: Contender, sandbox: Sandbox, folder: Path, package: Path) -> None:
        self.name = contender.name
        self._folder, self._state = folder, folder / "state"
        self._state.mkdir(parents=True)
        ours = settings(
            profile=contender.profile,
            virtual_devices=str(DEVICES),
            preload=_PRELOAD,
            state_dir=str(self._state),
        )
        own = {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))}
        self.worker: Process = sandbox.start_worker(contender.name, env={**ours, **own}, wait=False)
        self._deployment = UUID(int=0)

    async def ready(self) -> None:
        """The worker serves its pool, and the flow is deployed there."""
        await asyncio.to_thread(self.worker.wait_for_output, "started!")
        self._deployment = await deploy(_FLOW, "fit", self.name)

    async def submit(self, client: PrefectClient, sweep: str, training: Training) -> UUID:
        """One run."""
        parameters = {
            "steps": training.steps,
            "seed": training.seed,
            "step_s": STEP_S,
            "notes": str(self._noted(sweep, training)),
        }
        run = await client.create_flow_run_from_deployment(
            self._deployment,
            parameters=parameters,
            name=f"{sweep}-{training.seed:02d}",
            job_variables={"gpus": training.gpus, "preemptible": True, "features": ["steps"]},
        )
        return run.id

    async def passed(
        self, client: PrefectClient, sweep: str, trainings: Sequence[Training], ids: Sequence[UUID]
    ) -> Passed:
        """Wait for the end of all, and see what became of them."""
        runs = {run.id: run for run in await self._over(client, ids)}
        good = [id_ for id_ in ids if (state := runs[id_].state) is not None and state.is_completed()]
        created, ended = {}, {}
        for id_ in ids:
            if (made := runs[id_].created) is None or (end := runs[id_].end_time) is None:
                raise SandboxError(f"{runs[id_].name} has no beginning or no end")
            created[id_], ended[id_] = made.timestamp(), end.timestamp()
        took = [ended[id_] - created[id_] for id_ in ids]
        stops = [await _stops(client, id_) for id_ in ids]
        rows = {row.run_id: row for row in await recorded(self._state, good, self.worker)}
        off = []
        for id_ in good:
            row = rows[str(id_)]
            if isinstance(told := row.estimate.get(TRAINING_S), list):
                training = trainings[ids.index(id_)]
                factor = told[0] / (training.steps * STEP_S)
                off.append(max(factor, 1 / factor))
        done_well = [one for one, id_ in zip(trainings, ids, strict=True) if id_ in good]
        steps = [[number for number, _ in notes(self._noted(sweep, one))] for one in done_well]
        results = [(self._folder / f"{self._noted(sweep, one).name}.result") for one in done_well]
        different = await asyncio.to_thread(_different, done_well, results)
        return Passed(
            mean_s=statistics.fmean(took),
            p99_s=statistics.quantiles(took, n=100, method="inclusive")[98],
            makespan_s=max(ended.values()) - min(created.values()),
            stops=sum(stops),
            most_stops=max(stops),
            twice=sum(len(done) - len(set(done)) for done in steps),
            lost=sum(len(set(range(one.steps)) - set(done)) for one, done in zip(done_well, steps, strict=True)),
            different=different,
            jct_s=tuple(round(one, 2) for one in took),
            failed=len(ids) - len(good),
            off=round(statistics.median(off), 3) if off else None,
        )

    async def _over(self, client: PrefectClient, ids: Sequence[UUID]) -> list[FlowRun]:
        """The runs, once all of them have ended in some way."""
        end = time.monotonic() + _DEADLINE_S
        while True:
            runs = await read_runs(client, ids)
            if all(run.state is not None and run.state.is_final() for run in runs):
                return runs
            if self.worker.popen.poll() is not None or time.monotonic() > end:
                raise SandboxError(f"Not all runs of {self.name} ended:\n{self.worker.output[-3000:]}")
            await asyncio.sleep(_LOOK_S)

    def _noted(self, sweep: str, training: Training) -> Path:
        return self._folder / f"{sweep}-{training.seed}.notes"


async def _stops(client: PrefectClient, run_id: UUID) -> int:
    """How often a run gave way, by its history in Prefect."""
    states = await client.read_flow_run_states(run_id)
    return sum((state.message or "").startswith(GAVE_WAY) for state in states)


def _different(trainings: Sequence[Training], results: Sequence[Path]) -> int:
    """How many files do not hold what the undisturbed training gives."""
    pairs = zip(trainings, results, strict=True)
    return sum(result.read_text() != undisturbed(training) for training, result in pairs)


def players(sandbox: Sandbox, contenders: Sequence[Contender]) -> list[Player]:
    """Start everybody whose version is to be had."""
    found = []
    for one in contenders:
        folder = sandbox.folder / one.name
        folder.mkdir()
        package = ROOT if one.commit is None else former_version(one.commit, folder / "package")
        if package is not None:
            found.append(Player(one, sandbox, folder, package))
    return found


async def play(
    client: PrefectClient, sweep: str, trainings: Sequence[Training], everybody: Sequence[Player]
) -> Mapping[str, Passed]:
    """One sweep, of all contenders at the same time: whatever else the machine does, it does to all of them."""
    ids: dict[str, list[UUID]] = {player.name: [] for player in everybody}
    begin = time.monotonic()
    for training in trainings:
        await asyncio.sleep(max(0.0, begin + training.at_s - time.monotonic()))
        made = await asyncio.gather(*(player.submit(client, sweep, training) for player in everybody))
        for player, id_ in zip(everybody, made, strict=True):
            ids[player.name].append(id_)
    done = await asyncio.gather(*(player.passed(client, sweep, trainings, ids[player.name]) for player in everybody))
    return {player.name: one for player, one in zip(everybody, done, strict=True)}
