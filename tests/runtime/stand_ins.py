"""A driver and a host for tests of the controller: real implementations of both interfaces, without processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.runtime.host import NotOursError
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import AtRisk, Hold, Promise, Refuse
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome


class MemoryHandle(RunHandle):
    """A "process" that ends when the test says so, or when it is stopped."""

    def __init__(self, run_id: str) -> None:
        self.run_id, self.pid, self.warm = run_id, 4711, True
        self.stopped_with: float | None = None
        self._end: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()

    def end(self, returncode: int | None = 0, **more: Any) -> None:
        """The process ends."""
        if not self._end.done():
            self._end.set_result(ExitReport(returncode, **more))

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return not self._end.done()

    async def wait(self) -> ExitReport:
        """See the base class."""
        return await asyncio.shield(self._end)

    async def stop(self, grace_seconds: float) -> None:
        """See the base class."""
        self.stopped_with = grace_seconds
        self.end(-15)


class MemoryDriver(Driver):
    """A stand-in for tests: what it launches are futures in ``world``, which outlives it as processes outlive a worker.

    Args:
        world: Handles by run folder. Hand the same one to the next driver to let it adopt.
    """

    def __init__(self, world: dict[Path, MemoryHandle] | None = None) -> None:
        self.world = {} if world is None else world
        self.specs: list[LaunchSpec] = []
        self.refuse: Exception | None = None
        self.slow: asyncio.Event | None = None  # launches wait for it, without a process yet
        self.slow_answer: asyncio.Event | None = None  # launches wait for it, when their process exists already
        self.launching = asyncio.Event()
        self.closed = False

    async def start(self) -> None:
        """See the base class."""

    async def close(self) -> None:
        """See the base class."""
        self.closed = True

    async def launch(self, spec: LaunchSpec) -> MemoryHandle:
        """See the base class."""
        self.specs.append(spec)
        self.launching.set()
        if self.slow is not None:
            await self.slow.wait()
        if self.refuse is not None:
            raise self.refuse
        self.world[spec.run_dir] = MemoryHandle(spec.run_id)
        if self.slow_answer is not None:
            await self.slow_answer.wait()
        return self.world[spec.run_dir]

    async def adopt(self, run_id: str, run_dir: Path) -> MemoryHandle | None:
        """See the base class."""
        return self.world.get(run_dir)


class RecordingHost:
    """Owns the runs of a test and remembers what the controller told it."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.free_again: list[str] = []
        self.rows: list[HistoryRow] = []
        self.contention: list[ContentionRow] = []
        self.holds: list[Hold] = []
        self.reports: list[ExitReport] = []
        self.records_at_prepare: list[bool] = []
        self.prepare_errors: list[Exception] = []  # raised, one a call
        self.finalising: asyncio.Event | None = None  # finalise() waits for it
        self.preparing: asyncio.Event | None = None  # prepare() waits for it
        self.outcome: tuple[Outcome | None, str] = ("completed", "fine")
        self.had_begun: tuple[Outcome, str, float | None] | None = None  # what unlaunched() finds
        self.request = Request()
        self.found_out: dict[str, Any] = {}  # by prepare(), for the history

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        if run_id == "undescribable":
            raise KeyError(run_id)
        place = Placement("", (), ())
        record = RunRecord(run_id, f"name of {run_id}", "pool", "q", "", self.request, place, times={"submitted": 1.0})
        record.known = {"flow_name": "train", "features": {"tags": ["x"]}}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        self.said.append(f"prepare {run.run_id}")
        self.records_at_prepare.append((run.folder / "record.json").exists())
        if self.preparing is not None:
            await self.preparing.wait()
        if self.prepare_errors:
            raise self.prepare_errors.pop(0)
        run.record.known |= self.found_out
        return LaunchSpec(run.run_id, run.folder, ("python",), {"MINE": "1"}, run.folder)

    async def launched(self, run: Launch) -> None:
        """See Host."""
        self.said.append(f"launched {run.run_id}")

    async def falls_apart(self, run: Launch) -> None:
        """See Host."""

    def answered(self, answer: Promise | Refuse | AtRisk) -> None:
        """See :class:`.Host`: nobody here asks for a deadline."""

    def held(self, hold: Hold) -> None:
        """See Host."""
        self.holds.append(hold)

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""
        self.said.append(f"{kind} {run.run_id}")

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See Host."""
        self.said.append(f"finalise {run.run_id}")
        self.reports.append(report)
        if self.finalising is not None:
            await self.finalising.wait()
        return self.outcome

    async def unlaunched(self, run: Launch) -> tuple[Outcome, str, float | None] | None:
        """See Host."""
        self.said.append(f"unlaunched {run.run_id}")
        return self.had_begun

    def released(self, run: Launch) -> None:
        """See Host."""
        self.free_again.append(run.run_id)

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""
        self.contention.append(row)

    def record_history(self, row: HistoryRow) -> None:
        """See Host."""
        self.rows.append(row)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so; the test's own timeout ends a vain wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


__all__ = ["LaunchError", "MemoryDriver", "MemoryHandle", "NotOursError", "RecordingHost", "until"]
