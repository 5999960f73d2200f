"""A controller with real processes and without Prefect: for tests, and for benchmarks of what the controller does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome

ROOT = Path(__file__).parents[1]
LOGGER = logging.getLogger("benchmarks.processes")


def node(devices: int, name: str = "here") -> Node:
    """A node with virtual devices."""
    names = (f"{name}-{number}" for number in range(devices))
    return Node(name, tuple(Device(one, "virtual", 8 << 30, virtual=True) for one in names), ())


class Orders(Reaction):
    """Preempts and moves what it is told to: what policies want it for is no matter here."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str | None]] = []

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See Reaction."""
        changed = False
        while self.waiting:
            run_id, device = self.waiting.pop()
            job = decision.state.running[run_id]
            assert job.placement is not None and decision.may_stop(job)
            if device is None:
                decision.preempt(job, "it is to wait")
            else:
                place: Placement = dataclasses.replace(job.placement, devices=(device,))
                decision.move(job, place, "it is to move")
            changed = True
        return changed


class Owner:
    """Owns the runs, as a :class:`.Host`; it outlives its controllers, as Prefect does.

    Attributes:
        env: Of each run, more environment variables.
        over: How the processes of runs ended that were not to leave.
        left: Runs that gave way, and why.
        ended_at: When each run was finalised, on the monotonic clock.
    """

    def __init__(self, argv: tuple[str, ...]) -> None:
        self.argv = argv
        self.env: dict[str, dict[str, str]] = {}
        self.requests: dict[str, Request] = {}
        self.over: dict[str, ExitReport] = {}
        self.left: list[tuple[str, str]] = []
        self.ended_at: dict[str, float] = {}

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        place, times = Placement("", (), ()), {"submitted": time.time()}
        record = RunRecord(run_id, run_id, "pool", "q", "", self.requests[run_id], place, times=times)
        record.known = {"flow_name": "train", "features": {}}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_GPU_")}
        env |= self.env[run.run_id]
        return LaunchSpec(run.run_id, run.folder, self.argv, env, ROOT, stream_output=False)

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See Host."""
        assert run.run_id not in self.over, f"{run.run_id} is finalised twice"
        self.over[run.run_id], self.ended_at[run.run_id] = report, time.monotonic()
        return ("completed" if report.returncode == 0 else "crashed"), ""

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host."""
        self.left.append((run.run_id, reason))
        return True

    async def launched(self, run: Launch) -> None:
        """See Host."""

    async def unlaunched(self, run: Launch) -> None:
        """See Host."""

    def held(self, hold: Hold) -> None:
        """See Host."""

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""

    def released(self, run: Launch) -> None:
        """See Host."""

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""

    def record_history(self, row: HistoryRow) -> None:
        """See Host."""


class ProcessPool:
    """A controller, its owner and its orders.

    Args:
        argv: The command of every run.
        nodes: Where they run.
        profile: Name of the scheduling profile.
        preload: Modules that a warm interpreter imports ahead; None: each run is a new interpreter.
    """

    def __init__(
        self,
        folder: Path,
        argv: tuple[str, ...],
        *nodes: Node,
        profile: str = "adaptive",
        preload: Sequence[str] | None = None,
    ) -> None:
        self.folder, self.nodes = folder, nodes
        self._profile, self._preload = profile, preload
        self.owner = Owner(argv)
        self.orders = Orders()
        self.controller: Controller

    async def __aenter__(self) -> ProcessPool:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        for run in list(self.controller.runs.values()):
            await self.controller.stop(run.run_id, 0)
        await self.controller.close()

    async def begin(self) -> None:
        """A worker begins, and adopts what is there."""
        self.controller = Controller(
            self.owner,
            nodes=self.nodes,
            driver=ProcessDriver(warm=self._preload is not None, preload=self._preload or (), logger=LOGGER),
            state_dir=self.folder / "state",
            pool="pool",
            profile=self._profile,
            logger=LOGGER,
        )
        scheduler = self.controller.scheduler
        reactions = (*scheduler.profile.reactions, self.orders)
        scheduler.profile = dataclasses.replace(scheduler.profile, reactions=reactions)
        await self.controller.start()

    def submit(self, run_id: str, request: Request, estimate: Estimate = UNKNOWN, **env: str) -> None:
        """A run waits. Its variables may be given with it, and what the scheduler is to know of it."""
        self.owner.requests[run_id], self.owner.env[run_id] = request, env
        self.controller.handle(ev.JobSubmitted(run_id, request, "q", 0.0, 0.0, run_id, estimate))

    def leave(self, run_id: str, to: str | None = None) -> None:
        """A run is to leave its place: for a device, or to wait."""
        self.orders.waiting.append((run_id, to))
        self.controller.handle(ev.TimePassed())

    async def over(self, *run_ids: str) -> None:
        """Wait until runs are over."""
        await until(lambda: set(run_ids) <= set(self.owner.over))
        await self.controller.wait_idle()


def python(module: str) -> tuple[str, ...]:
    """The command that runs a module."""
    return (sys.executable, "-m", module)


def notes(file: Path) -> list[Any]:
    """What was noted so far, a line each."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def until(condition: Any) -> None:
    """Wait until something is so; the test's own timeout ends a vain wait."""
    while not condition():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.01)
