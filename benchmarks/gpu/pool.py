"""The kit's jobs, how they ended, and the pool that runs them on the machine's device."""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from benchmarks._host.drivers import WarmDriver
from benchmarks._host.pool import Pool, Run, module
from benchmarks.gpu.machine import Machine
from prefect_gpu.estimation import runs as r
from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.scheduling.profiles import Profile

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

    def throughput(self, known: r.Known, max_gpus: int, *, apart: bool = False) -> tuple[float, ...]:
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


def warm_driver() -> WarmDriver:
    """Starts the trainings of a kit."""
    return WarmDriver("numpy", "torch", "torch.utils.data", logger=logger)


class KitPool(Pool):
    """Runs jobs on the machine's device.

    Args:
        folder: For this pool alone.
        driver: Starts its runs.
        heartbeat_s: Seconds between two moments at which the scheduler hears of anything; None: at once.
        prescheduling: Whether runs may be prepared behind others.
        past: What is known of earlier runs; None: nothing.
        profile: Other policies than those of ``adaptive``.
        environment: Variables of all runs; by default this process's, without the pool's own.
    """

    controller_type = _Heartbeats
    controller: _Heartbeats
    trainings = "benchmarks.gpu.trainings"
    """The module with the programs."""

    def __init__(
        self,
        machine: Machine,
        folder: Path,
        driver: WarmDriver,
        *,
        heartbeat_s: float | None = None,
        prescheduling: bool = True,
        past: Past | None = None,
        profile: Profile | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            folder,
            (machine.node,),
            lambda: driver,
            profile="adaptive" if profile is None else lambda: profile,
            abilities=replace(ABILITIES, preemption=Preemption.NONE, gates=prescheduling),
            environment=environment,
            deadline_s=_DEADLINE_S,
            name="kit",
        )
        (folder / "marks").mkdir(exist_ok=True)
        self._machine, self._heartbeat_s, self._past = machine, heartbeat_s, past
        self._jobs: dict[str, Job] = {}

    async def begin(self) -> None:
        """See the base class."""
        await super().begin()
        self.controller.every_s = self._heartbeat_s
        self.controller.estimates.estimator = cast(Any, self._past)

    async def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Submit all jobs at once, in order, and wait until all are over, however they ended.

        Raises:
            RunFailed: They take longer than nine minutes.
        """
        names = [self.submit_job(job) for job in jobs]
        await self.over(*names)
        return [self.outcome(name) for name in names]

    def submit_job(self, job: Job) -> str:
        """Put a job into the queue; its run's name."""
        name = f"{job.name}-{len(self._jobs)}"
        self._jobs[name] = job
        facts = known_of(job.program, job.parameters, job.request, {}, self._machine.device.kind)
        estimate = self.controller.estimates.submitted(name, facts)
        known = {"flow_name": job.program, "parameters": job.parameters}
        self.submit(Run(name, self.command(job, self._marks(name)), job.request, known=known, estimate=estimate))
        return name

    def command(self, job: Job, marks: Path) -> tuple[str, ...]:
        """What runs a job, which writes its marks there."""
        order = {"program": job.program, "parameters": job.parameters, "marks": str(marks)}
        return module(self.trainings, json.dumps(order))

    def outcome(self, name: str) -> Outcome:
        """How a run that is over went."""
        course, marks = self.courses[name], self._marks(name)
        written = json.loads(marks.read_text()) if marks.exists() else {}
        tail = () if course.report is None else course.report.tail
        row = {} if course.row is None else asdict(course.row)
        return Outcome(self._jobs[name], row, written, tail)

    def _marks(self, name: str) -> Path:
        return self.folder / "marks" / f"{name}.json"
