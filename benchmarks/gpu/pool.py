"""The pool without Prefect: the real controller, scheduler, driver and channel, and a list of jobs in its place."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from benchmarks.gpu.machine import Machine
from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.storage.row import ContentionRow, HistoryRow
from prefect_gpu.storage.row import Outcome as Ending

_ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 540.0
_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "MemoryError", "allocate memory")
logger = logging.getLogger("benchmarks.gpu")


@dataclass(frozen=True)
class Job:
    """One training to run: a program of :mod:`benchmarks.gpu.trainings`, its parameters, and what it asks for."""

    name: str
    program: str
    parameters: dict[str, Any] = field(default_factory=dict)
    request: Request = field(default_factory=Request)


@dataclass(frozen=True)
class Outcome:
    """A run that is over.

    Attributes:
        row: As the history would keep it.
        marks: What the training wrote down itself, in Unix seconds; empty if it did not come to its end.
        tail: Its last lines of output.
    """

    job: Job
    row: dict[str, Any]
    marks: dict[str, Any]
    tail: tuple[str, ...]

    @property
    def completed(self) -> bool:
        """Whether it ran to its end."""
        return self.row["outcome"] == "completed"

    @property
    def out_of_memory(self) -> bool:
        """Whether it ended because memory ran out."""
        return not self.completed and any(word in line for word in _OUT_OF_MEMORY for line in self.tail)

    def measured_bytes(self) -> int | None:
        """Peak memory on the device; of a virtual device, the process's resident memory stands for it.

        PyTorch knows its own peak; the samples of the device may have missed that of a short run.
        """
        virtual = any(device.startswith("virtual-") for device in self.row["devices"])
        found = self.marks.get("device_bytes") or self.row["device_memory_peak_bytes"]
        return found or (self.row["rss_peak_bytes"] if virtual else None)


class Past:
    """Estimates that are the medians of like runs: the kit's runs are alike, so that nothing has to be learned.

    How well the pool's own models do where runs differ is what :mod:`benchmarks.estimation` measures.
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._rows = [one.row for one in outcomes if one.completed]

    def estimate(self, known: r.Known) -> r.RunEstimate:
        """See ``Estimator.estimate``."""
        rows = [row for row in self._rows if row["flow_name"] == known.program]
        columns = {r.LAUNCHING_S: "prepared_s", r.TRAINING_S: "trained_s", r.SAVING_S: "saved_s"}
        targets = {}
        for target, column in columns.items():
            values = [row[column] for row in rows if row[column] is not None]
            if values:
                middle = statistics.median(values)
                targets[target] = r.Interval(middle, 0.8 * middle, 1.2 * middle)
        return r.RunEstimate(targets, from_runs=len(rows)) if targets else r.NOTHING_KNOWN

    def throughput(self, known: r.Known, max_gpus: int) -> tuple[float, ...]:
        """See ``Estimator.throughput``: nothing is known."""
        return ()


class _Heartbeats(Controller):
    """A controller that hears what has happened only at the next heartbeat, as where nodes report by polling."""

    every_s: float | None = None
    _unheard: list[ev.Event]
    _beating: asyncio.Task[None] | None = None

    def handle(self, event: ev.Event) -> None:
        """Keep the event until the next heartbeat, if there are any."""
        if self.every_s is None or isinstance(event, ev.NodesChanged):
            super().handle(event)
            return
        if self._beating is None:
            self._unheard = []
            self._beating = asyncio.get_running_loop().create_task(self._beat(self.every_s))
        self._unheard.append(event)

    async def _beat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            heard, self._unheard = self._unheard, []
            for event in heard:
                super().handle(event)

    async def close(self) -> None:
        """See the base class."""
        if self._beating is not None:
            self._beating.cancel()
        await super().close()


class KitDriver(ProcessDriver):
    """The process driver, with one warm interpreter for all the pools of a kit. A context manager."""

    def __init__(self) -> None:
        super().__init__(warm=True, preload=("numpy", "torch", "torch.utils.data"), logger=logger)

    async def __aenter__(self) -> KitDriver:
        await self.start()
        assert self._warm is not None
        await self._warm._settled.wait()  # nothing is measured before it has loaded PyTorch
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().close()

    async def close(self) -> None:
        """A pool ends: its runs are let go of, and the interpreter stays."""
        for handle in tuple(self._handles):
            handle.release()


class Pool:
    """Runs jobs on the machine's device. A context manager; the controller's host.

    Args:
        folder: For this pool alone.
        driver: Starts its runs.
        heartbeat_s: Seconds between two moments at which the scheduler hears of anything; None: at once.
        prescheduling: Whether runs may be prepared behind others.
        past: What is known of earlier runs; None: nothing.
        profile: Other policies than those of ``adaptive``.
    """

    def __init__(
        self,
        machine: Machine,
        folder: Path,
        driver: KitDriver,
        *,
        heartbeat_s: float | None = None,
        prescheduling: bool = True,
        past: Past | None = None,
        profile: Profile | None = None,
    ) -> None:
        self._machine = machine
        self._folder = folder
        self._jobs: dict[str, Job] = {}
        self._tails: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._over: dict[str, asyncio.Event] = {}
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        abilities = replace(ABILITIES, preemption=Preemption.NONE, gates=prescheduling)
        self.controller = _Heartbeats(
            self,
            nodes=(machine.node,),
            driver=driver,
            state_dir=folder / "state",
            pool="kit",
            profile="adaptive",
            abilities=abilities,
            logger=logger,
        )
        self.controller.every_s = heartbeat_s
        if profile is not None:
            self.controller.scheduler = Scheduler(profile, abilities)
        self.controller.estimates.estimator = cast(Any, past)

    async def __aenter__(self) -> Pool:
        await self.controller.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run_id in list(self.controller.runs):
            await self.controller.stop(run_id, 1.0)
        await self.controller.close()

    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Submit all jobs at once, in order, and wait until all are over.

        Raises:
            asyncio.TimeoutError: They take longer than nine minutes.
        """
        ids = [self.submit(job) for job in jobs]
        await asyncio.wait_for(asyncio.gather(*(self._over[one].wait() for one in ids)), _DEADLINE_S)
        return [self.outcome(one) for one in ids]

    def submit(self, job: Job) -> str:
        """Put a job into the queue; its run's id."""
        run_id = f"{job.name}-{len(self._jobs)}"
        self._jobs[run_id] = job
        self._over[run_id] = asyncio.Event()
        known = known_of(job.program, job.parameters, job.request, {}, self._machine.device.kind)
        estimate = self.controller.estimates.submitted(run_id, known)
        now = time.time()
        self.controller.handle(ev.JobSubmitted(run_id, job.request, "default", now, now, job.name, estimate))
        return run_id

    async def over(self, run_id: str) -> Outcome:
        """Wait until a run is over."""
        await asyncio.wait_for(self._over[run_id].wait(), _DEADLINE_S)
        return self.outcome(run_id)

    def outcome(self, run_id: str) -> Outcome:
        """How a run that is over went."""
        marks = self._folder / "marks" / f"{run_id}.json"
        written = json.loads(marks.read_text()) if marks.exists() else {}
        return Outcome(self._jobs[run_id], self._rows[run_id], written, self._tails.get(run_id, ()))

    # -- the controller's host ------------------------------------------------------------------------------------

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        job = self._jobs[run_id]
        record = RunRecord(run_id, job.name, "kit", "default", "", job.request, Placement("", (), ()))
        record.times["submitted"] = time.time()
        record.known = {"flow_name": job.program, "parameters": job.parameters}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        job = self._jobs[run.run_id]
        marks = str(self._folder / "marks" / f"{run.run_id}.json")
        order = json.dumps({"program": job.program, "parameters": job.parameters, "marks": marks})
        argv = (sys.executable, "-m", "benchmarks.gpu.trainings", order)
        return LaunchSpec(run.run_id, run.folder, argv, dict(os.environ), _ROOT, stream_output=False)

    async def launched(self, run: Launch) -> None:
        """See Host."""

    def held(self, hold: Hold) -> None:
        """See Host."""

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Ending | None, str]:
        """See Host."""
        self._tails[run.run_id] = report.tail
        return ("completed", "") if report.returncode == 0 else ("failed", "\n".join(report.tail[-3:]))

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host. Nobody is asked to leave here."""
        return False

    async def unlaunched(self, run: Launch) -> None:
        """See Host."""

    def released(self, run: Launch) -> None:
        """See Host."""
        self._over[run.run_id].set()

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""

    def record_history(self, row: HistoryRow) -> None:
        """See Host."""
        self._rows[row.run_id] = asdict(row)
