"""A started process of this machine, seen through what its supervisor wrote: the same for a launch and an adoption."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import priority, supervisor
from prefect_gpu.runtime.drivers.base import ExitReport, RunHandle
from prefect_gpu.runtime.drivers.launched import Ended, Started, marked
from prefect_gpu.runtime.drivers.output import OutputTail, keep_small, tail_lines
from prefect_gpu.runtime.drivers.throttle import Throttle

_POLL_SECONDS = 0.2  # only where the kernel has no pidfd
_HUNG_SECONDS = 5.0  # a supervisor with nothing left to watch over reports within milliseconds
_REMIND_SECONDS = 30.0


class ProcessHandle(RunHandle):
    """A run of the process driver.

    Args:
        run_id: The flow run's id.
        run_dir: The folder of the launch.
        started: The contents of ``process.json``.
        echo: Given each line of output from ``offset`` on, or None.
        offset: Bytes of output that have been repeated before.
        logger: Told of what went wrong.
    """

    def __init__(
        self,
        run_id: str,
        run_dir: Path,
        started: Started,
        echo: Callable[[str], None] | None,
        offset: int,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self.run_id, self.pid, self.warm = run_id, started.pid, started.warm
        self._dir, self._logger = run_dir, logger
        same_boot = started.boot == supervisor.boot_id()  # otherwise the numbers are those of strangers
        self._main = (started.pid, started.start_ticks) if same_boot else None
        self._supervisor = (started.supervisor_pid, started.supervisor_start_ticks) if same_boot else None
        self._throttle = Throttle(self._main, self._supervisor) if self._main and self._supervisor else None
        self._tail = OutputTail(run_dir / supervisor.OUTPUT, offset, echo) if echo else None
        self._watcher = asyncio.create_task(self._watch(), name=f"run {run_id}")

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self._watcher)

    async def stop(self, grace_seconds: float) -> None:
        if self._main is not None and not self._watcher.done():
            if self._throttle is not None:  # who is stopped hears nothing
                self._throttle.close()
            if grace_seconds > 0:  # else it says no last word: Prefect's engine would call it a crash
                supervisor.send(*self._main, signal.SIGTERM)
                if await _within(grace_seconds, gone(*self._main)):
                    # The supervisor now ends the leftovers in its own way, with a grace of theirs.
                    await _within(supervisor.LEFTOVER_GRACE_SECONDS + _HUNG_SECONDS, self.wait())
            await self._kill()
        await self.wait()

    def silence(self) -> None:
        """Let the run's process say nothing more, from this moment on. :meth:`stop` ends what else there is of it."""
        if self._main is not None and not self._watcher.done():
            supervisor.send(*self._main, signal.SIGKILL)

    def bind(self, cpus: tuple[int, ...]) -> bool:
        return priority.bind([process.pid for process in self._left()], cpus)

    def set_priority(self, weight: float) -> bool:
        if self._main is None or self._watcher.done() or not priority.adjustable():
            return False
        return priority.set_priority(self._main[0], [process.pid for process in self._left()], weight)

    def set_duty(self, part: float) -> bool:
        return self._throttle is not None and not self._watcher.done() and self._throttle.set(part)

    def busy_seconds(self) -> float | None:
        return priority.cpu_seconds([process.pid for process in self._left()])

    def when_over(self, call: Callable[[], object]) -> None:
        """Call this when the run is over, or is watched no more."""
        self._watcher.add_done_callback(lambda _: call())

    def release(self) -> None:
        """Stop watching; the run goes on. Whoever still waits for it is cancelled."""
        self._watcher.cancel()

    async def _watch(self) -> ExitReport:
        following = asyncio.create_task(self._tail.run()) if self._tail else None
        trimming = asyncio.create_task(keep_small(self._dir / supervisor.OUTPUT))
        try:
            if self._supervisor is not None:
                await gone(*self._supervisor)
                reap(self._supervisor[0])
            ended = files.read(Ended, self._dir / supervisor.EXIT, self._logger.error)
            if ended is None:
                self._logger.warning("Run %s: its supervisor vanished; ending what is left of the run.", self.run_id)
                await self._sweep()
            if following is not None and self._tail is not None:
                self._tail.finish()
                await asyncio.wait((following,))
                if error := following.exception():
                    self._logger.warning("Run %s: its output could not be repeated: %s", self.run_id, error)
        finally:
            if self._throttle is not None:
                self._throttle.close()
            trimming.cancel()
            if following is not None:
                following.cancel()
        tail = tail_lines(self._dir / supervisor.OUTPUT)
        if ended is None:
            return ExitReport(None, tail=tail)
        if ended.left:
            self._logger.error("Run %s left processes that this user may not end: %s", self.run_id, ended.left)
        return ended.report(tail)

    async def _kill(self) -> None:
        """SIGKILL everything of the run until the supervisor has reported, or has to be ended as well."""
        idle_since = reminded = time.monotonic()
        while not self._watcher.done() and self._supervisor is not None:
            now, left = time.monotonic(), self._left()
            for process in left:
                supervisor.send(process.pid, process.start_ticks, signal.SIGKILL)
            if left:
                idle_since = now
            elif now - idle_since > _HUNG_SECONDS:
                self._logger.warning("Run %s: its supervisor hangs; ending it.", self.run_id)
                supervisor.send(*self._supervisor, signal.SIGKILL)
            if now - reminded > _REMIND_SECONDS:
                reminded = now
                pids = [process.pid for process in left]
                self._logger.error(
                    "Run %s: processes %s do not end on SIGKILL (waiting for a device?)", self.run_id, pids
                )
            await _within(0.02 if now - idle_since < 1 else 0.2, self.wait())

    async def _sweep(self) -> None:
        """End what a run left whose supervisor is no more."""
        reminded = time.monotonic()
        while left := self._left(with_marked=True):
            refused = [p for p in left if not supervisor.send(p.pid, p.start_ticks, signal.SIGKILL)]
            if len(refused) == len(left):
                self._logger.error("Run %s left processes that this user may not end: %s", self.run_id, refused)
                return
            if time.monotonic() - reminded > _REMIND_SECONDS:
                reminded = time.monotonic()
                self._logger.error("Run %s: processes do not end on SIGKILL: %s", self.run_id, left)
            await asyncio.sleep(0.02)

    def _left(self, with_marked: bool = False) -> list[supervisor.Process]:
        """The living processes of the run: in its session, below its supervisor, or marked with its id."""
        everything = supervisor.processes()
        found: dict[int, supervisor.Process] = {}
        if self._supervisor is not None and supervisor.alive(*self._supervisor):
            found.update({p.pid: p for p in supervisor.descendants(self._supervisor[0], everything)})
        if self._main is not None:
            # A session keeps its number from being used again, so one whose leader is a stranger is not ours.
            leader = supervisor.look(self._main[0])
            if leader is None or leader.start_ticks == self._main[1]:
                found.update({p.pid: p for p in everything if p.session == self._main[0]})
        if with_marked:
            found.update({p.pid: p for p in marked(self.run_id) if p.pid != os.getpid()})
        for pid in list(found):
            found.update({p.pid: p for p in supervisor.descendants(pid, everything)})
        return list(found.values())


async def gone(pid: int, start_ticks: int) -> None:
    """Wait until this very process has ended. It need not be a child of ours."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # no such call in this Python or kernel, or too many open files
        while supervisor.alive(pid, start_ticks):  # noqa: ASYNC110 -- it is another process that changes
            await asyncio.sleep(_POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    try:
        if supervisor.alive(pid, start_ticks):
            ended = asyncio.Event()
            loop.add_reader(watched, ended.set)
            await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def reap(pid: int) -> None:
    """Take the exit of a process that may be a child of ours, so that no zombie stays."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


async def _within(seconds: float, waiting: Any) -> bool:
    try:
        await asyncio.wait_for(waiting, max(seconds, 0))
    except asyncio.TimeoutError:
        return False
    return True
