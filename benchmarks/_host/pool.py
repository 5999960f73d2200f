"""The pool without Prefect: the real controller, scheduler, driver and channel; a list of runs is in Prefect's place.

Prefect need not be installed for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks._host.waiting import until
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import AtRisk, Hold, Promise, Refuse
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome
from prefect_gpu.training import protocol

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 900.0
_LINES = 8  # of a run's output, in an error
_Pool = TypeVar("_Pool", bound="Pool")


class RunFailed(RuntimeError):
    """A run did not complete. The message has its cause and the end of its output."""


@dataclass(frozen=True)
class Run:
    """What is submitted.

    Attributes:
        name: Its name and its id.
        argv: Its command.
        env: More environment variables than the pool's.
        known: What is known at submission, as the history keeps it.
        estimate: What the scheduler is told of it.
    """

    name: str
    argv: tuple[str, ...]
    request: Request = field(default_factory=Request)
    env: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=lambda: {"flow_name": "train"})
    estimate: Estimate = UNKNOWN


@dataclass
class Course:
    """What has become of a run.

    Attributes:
        submitted: In Unix seconds.
        hold: Why it waits, as the scheduler last said.
        left: Why it was stopped to carry on later or elsewhere, each time.
        trained_s: For how long it has trained, all launches together.
        record: Of its last launch, once that is over.
        report: How its last process ended.
        outcome: None while it is not over.
        ended: When that was known, in Unix seconds.
        finalised: The same on the monotonic clock.
        row: As the history would keep it.
        over: Set when all of this is there.
    """

    run: Run
    submitted: float
    hold: str = ""
    left: list[str] = field(default_factory=list)
    trained_s: float = 0.0
    record: RunRecord | None = None
    report: ExitReport | None = None
    outcome: Outcome | None = None
    ended: float = 0.0
    finalised: float = 0.0
    row: HistoryRow | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def completed(self) -> bool:
        """Whether it ran to its end."""
        return self.outcome == "completed"

    @property
    def problem(self) -> str:
        """Why it failed; empty if it did not."""
        if self.report is None or self.outcome != "failed":
            return ""
        words = f"{self.run.name} ended with code {self.report.returncode}"
        return "\n".join((words, *filter(None, (self.report.cause,)), *self.report.tail[-_LINES:]))


class Pool:
    """Runs what is submitted to it. A context manager, which ends every run that is left; the controller's host.

    It outlives its controllers, as Prefect does: after ``controller.close()``, :meth:`begin` makes the next one.

    Args:
        folder: For this pool alone.
        nodes: Where runs go.
        make_driver: Makes what starts them, for each controller; by default each run is a new interpreter.
        profile: The scheduling profile: its name, or what makes it for each controller.
        abilities: What the scheduler may ask for.
        environment: Variables of all runs; by default this process's, without the pool's own.
        channel_host: The address at which runs find the controller.
        deadline_s: How long is waited for runs.
        name: The pool's.

    Attributes:
        courses: What was submitted, by name.
        contention: What was measured of gangs beside each other, as the history would keep it.
    """

    controller_type: type[Controller] = Controller

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Node],
        make_driver: Callable[[], Driver] | None = None,
        *,
        profile: str | Callable[[], Profile] = "adaptive",
        abilities: Abilities = ABILITIES,
        environment: Mapping[str, str] | None = None,
        channel_host: str = "127.0.0.1",
        deadline_s: float = _DEADLINE_S,
        name: str = "pool",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.nodes = folder, tuple(nodes)
        self.logger = logging.getLogger(f"benchmarks.{name}")
        self._make_driver = make_driver or partial(ProcessDriver, warm=False, logger=self.logger)
        self._profile, self._abilities = profile, abilities
        self._environment = without_ours(os.environ) if environment is None else environment
        self._channel_host, self._deadline_s, self._name = channel_host, deadline_s, name
        self.courses: dict[str, Course] = {}
        self.contention: list[ContentionRow] = []
        self.controller: Controller

    # -- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self: _Pool) -> _Pool:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        for run_id in list(self.controller.runs):
            await self.controller.stop(run_id, 0.0)
        await self.controller.close()

    async def begin(self) -> None:
        """A worker begins, and adopts what is there."""
        named = self._profile if isinstance(self._profile, str) else None
        self.controller = self.controller_type(
            self,
            nodes=self.nodes,
            driver=self._make_driver(),
            state_dir=self.folder / "state",
            pool=self._name,
            profile=named or "fifo",
            abilities=self._abilities,
            channel_host=self._channel_host,
            logger=self.logger,
        )
        if not isinstance(self._profile, str):
            self.controller.scheduler = Scheduler(self._profile(), self._abilities)
        await self.controller.start()

    # -- runs -----------------------------------------------------------------------------------------------------

    def submit(self, *runs: Run) -> None:
        """Put runs into the queue, all before anything is decided."""
        now = time.time()
        events = []
        for run in runs:
            self.courses[run.name] = Course(run, now)
            events.append(ev.JobSubmitted(run.name, run.request, "default", now, now, run.name, run.estimate))
        self.controller.handle(events[0] if len(events) == 1 else ev.Together(tuple(events)))

    async def over(self, *names: str) -> list[Course]:
        """Wait until runs are over, however they ended.

        Raises:
            RunFailed: It takes longer than the pool's deadline. The message says what each that is left does.
        """
        courses = [self.courses[name] for name in names]
        waiting = asyncio.gather(*(course.over.wait() for course in courses))
        try:
            await asyncio.wait_for(waiting, self._deadline_s)
        except asyncio.TimeoutError:
            left = "; ".join(self._doing(course) for course in courses if not course.over.is_set())
            raise RunFailed(f"Not over after {self._deadline_s:.0f} s: {left}") from None
        return courses

    async def completed(self, *names: str) -> list[Course]:
        """Wait until runs are over.

        Raises:
            RunFailed: One has not completed, or it takes longer than the pool's deadline.
        """
        courses = await self.over(*names)
        check(courses)
        return courses

    async def until(self, condition: Callable[[], bool], what: str, deadline_s: float | None = None) -> None:
        """Wait until something is so.

        Args:
            deadline_s: Seconds; by default the pool's.

        Raises:
            RunFailed: A run failed meanwhile.
            WaitedInVain: It was not within the time.
        """

        def so() -> bool:
            self.check()
            return condition()

        await until(so, what, deadline_s=self._deadline_s if deadline_s is None else deadline_s)

    def check(self) -> None:
        """Nothing has gone wrong so far.

        Raises:
            RunFailed: A run failed.
        """
        check(self.courses.values())

    async def end(self, name: str) -> None:
        """Cancel a run that is launched, and wait until it is gone."""
        await self.controller.stop(name, 0.0)
        await self.over(name)

    def phase(self, name: str) -> str:
        """The phase of a run that is launched; else empty."""
        run = self.controller.runs.get(name)
        return "" if run is None else run.phase

    def trains(self, name: str) -> bool:
        """Whether a run trains now."""
        return self.phase(name) == protocol.TRAINING

    def _doing(self, course: Course) -> str:
        name = course.run.name
        return f"{name} is {self.phase(name)}" if name in self.controller.runs else f"{name} waits: {course.hold}"

    # -- the controller's host ------------------------------------------------------------------------------------

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        course = self.courses[run_id]
        place, times = Placement("", (), ()), {"submitted": course.submitted}
        record = RunRecord(run_id, run_id, self._name, "default", "", course.run.request, place, times=times)
        record.known = dict(course.run.known)
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        told = self.courses[run.run_id].run
        env = {**self._environment, **told.env}
        return LaunchSpec(run.run_id, run.folder, told.argv, env, ROOT, stream_output=False)

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See Host."""
        course = self.courses[run.run_id]
        assert course.report is None, f"{run.run_id} is finalised twice"
        course.record, course.report = run.record, report
        course.ended, course.finalised = time.time(), time.monotonic()
        course.trained_s += _trained_s(run, course.ended)
        ended: Outcome = "completed" if report.returncode == 0 else "failed"
        course.outcome = "cancelled" if run.cancelling else ended
        return course.outcome, course.problem

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host. It waits again at once: there is nobody else to ask."""
        course = self.courses[run.run_id]
        course.left.append(reason)
        course.trained_s += _trained_s(run, time.time())
        return True

    def released(self, run: Launch) -> None:
        """See Host."""
        course = self.courses[run.run_id]
        if course.report is not None:
            course.over.set()

    def answered(self, answer: Promise | Refuse | AtRisk) -> None:
        """See :class:`.Host`: nobody here asks for a deadline."""

    def held(self, hold: Hold) -> None:
        """See Host."""
        if hold.job in self.courses:
            self.courses[hold.job].hold = hold.reason

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""
        self.contention.append(row)

    def record_history(self, row: HistoryRow) -> None:
        """See Host."""
        self.courses[row.run_id].row = row

    async def launched(self, run: Launch) -> None:
        """See Host."""

    async def falls_apart(self, run: Launch) -> None:
        """See Host."""

    async def unlaunched(self, run: Launch) -> None:
        """See Host."""

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""


def check(courses: Iterable[Course]) -> None:
    """None of these has failed.

    Raises:
        RunFailed: At least one has.
    """
    problems = [course.problem for course in courses if course.problem]
    if problems:
        raise RunFailed("\n".join(problems))


def virtual_node(devices: int, name: str = "here", memory_bytes: int = 8 << 30, cpus: Sequence[int] = ()) -> Node:
    """A node with virtual devices."""
    names = (f"{name}-{number}" for number in range(devices))
    return Node(name, tuple(Device(one, "virtual", memory_bytes, virtual=True) for one in names), tuple(cpus))


def without_ours(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what the pool tells its runs: it may be that of a run itself."""
    return {name: value for name, value in environment.items() if not name.startswith("PREFECT_GPU_")}


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of ours."""
    return (sys.executable, "-m", name, *arguments)


def notes(file: Path) -> list[Any]:
    """What a run has noted so far, a line each."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _trained_s(run: Launch, now: float) -> float:
    return now - run.record.times.get(protocol.TRAINING, now)
