"""A run's container, from its start or its adoption to the report of its end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import requests
from docker.errors import APIError, DockerException, NotFound
from urllib3.exceptions import HTTPError

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import intent, supervisor
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchError, RunHandle
from prefect_gpu.runtime.drivers.docker import containers, inside
from prefect_gpu.runtime.drivers.docker.log import ContainerLog
from prefect_gpu.runtime.drivers.docker.said import Lines
from prefect_gpu.runtime.drivers.launched import Say
from prefect_gpu.runtime.tasks import in_own_thread

if TYPE_CHECKING:
    from docker import DockerClient

T = TypeVar("T")
_BLOCKS = 16  # of output that wait to be taken in
_TAIL_LINES = 20
_LAST_LINES = 10_000  # that an engine may have left out, at most
_PERIOD_US = 100_000  # of the kernel's CPU quota
_LEAST_QUOTA_US = 1_000  # the kernel's own; a container that is stopped for good would outlive its worker so
_FULL_SHARES = 1024
_LEAST_SHARES = 2
_REACHED_AGAIN_S = 2.0
_ENDS_S = 0.05  # between the end of a container's output and its own
_NOBODY_SAW = 255  # what an Engine says of a container that was running when the Engine itself was killed
_POWER_LOST = "Its node lost its power, or its Engine was killed: nobody saw how it ended."


@dataclasses.dataclass(frozen=True)
class Made:
    """A container of ours: what a later worker must know to find it. Kept in the launch's folder before it starts."""

    container: str
    node: str
    mark: str
    cores: int = 0
    warm: bool = False  # whether it waited for the launch; once that has begun: whether its interpreter was used


class ContainerHandle(RunHandle):
    """A run of the docker driver.

    Args:
        run_id: The flow run's id.
        run_dir: The folder of the launch, on the worker's side.
        made: Its container.
        client: The engine that it is on.
        echo: Given each line of output, or None.
        since: Unix seconds: what was written before is not repeated; None: all of it is.
        logger: Told of what went wrong.
    """

    def __init__(
        self,
        run_id: str,
        run_dir: Path,
        made: Made,
        client: DockerClient,
        echo: Callable[[str], None] | None,
        since: float | None,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self.run_id, self.pid, self.warm = run_id, f"{made.node}:{made.container[:12]}", made.warm
        self._dir, self._made, self._client, self._logger = run_dir, made, client, logger
        self._echo, self._since = echo, since
        self._loop = asyncio.get_running_loop()
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._begun: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._ended: dict[str, Any] | None = None
        self._log = ContainerLog(client.api, made.container, since)
        self._blocks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._room = threading.BoundedSemaphore(_BLOCKS)  # a run that floods waits for the worker, not the other way
        self._released = False
        self._lost = ""
        self._busy_s: float | None = None
        self._changes = ThreadPoolExecutor(
            1, thread_name_prefix=f"container {run_id}"
        )  # in order, and never waited for
        self._watcher = asyncio.create_task(self._watch(), name=f"run {run_id}")

    @classmethod
    def of_ended(cls, run_id: str, made: Made, report: ExitReport) -> RunHandle:
        """A run whose end an earlier worker has seen."""
        return _Ended(run_id, f"{made.node}:{made.container[:12]}", made.warm, report)

    # -- its life -------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Wait until the run's own process exists.

        Raises:
            LaunchError: It could not be started; the container has been removed.
        """
        done, _ = await asyncio.wait((self._begun, self._watcher), return_when=asyncio.FIRST_COMPLETED)
        if self._begun not in done:
            if self._watcher.cancelled():  # its node was given up in this very moment
                lost = LaunchError("its node was lost while it started")
                lost.away = True
                raise lost
            report = await self.wait()
            lines = "\n".join(report.tail)
            failed = LaunchError(
                report.cause or f"its container ended with code {report.returncode} before the run began. {lines}"
            )
            failed.explains = bool(report.cause)
            killed = report.returncode == -signal.SIGKILL and not report.cause  # and not for its memory
            failed.away = report.lost or killed or report.returncode is None  # or removed, and nobody saw its end
            raise failed
        said = self._begun.result()
        if "error" in said:
            await self.wait()
            raise LaunchError(said["error"])
        if "cold" in said:
            self._logger.info("Run %s is started cold: %s.", self.run_id, said["cold"])
        self.warm = said["started"]["warm"]
        if self.warm != self._made.warm:
            self._made = dataclasses.replace(self._made, warm=self.warm)
            try:
                await asyncio.to_thread(write_made, self._dir, self._made)
            except OSError as error:  # the run has begun all the same; a later worker takes it for a warm one
                self._logger.error("Run %s: that it was started cold could not be written down: %s", self.run_id, error)

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self._watcher)

    async def announce_cancellation(self) -> None:
        await self.give(intent.CANCELLED, b"")

    async def relinquish(self) -> None:
        await self.give(intent.RELINQUISHED, b"")

    async def stop(self, grace_seconds: float) -> None:
        if grace_seconds > 0 and not self._watcher.done():
            await self._insist(lambda: self._signal(inside.STOP.name))
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.wait(), grace_seconds)
        if not self._watcher.done():
            await self._insist(lambda: self._signal("SIGKILL"))
        await self.wait()

    def when_over(self, call: Callable[[], object]) -> None:
        """Call this when the run is over, or is watched no more."""
        self._watcher.add_done_callback(lambda _: call())

    async def _insist(self, work: Callable[[], T]) -> T:
        """Do what is tried until the engine is back. The few threads that all share are not for that."""
        return await in_own_thread(work, f"container {self.run_id}")

    async def lose(self, cause: str) -> None:
        """Its machine is gone: the run is over, and nobody saw how. Its container may still be there."""
        self._lost = cause
        self._blocks.put_nowait(None)
        await self.wait()

    def release(self) -> None:
        """Stop watching; the container goes on. Whoever still waits for it is cancelled."""
        self._released = True
        self._watcher.cancel()
        if self._log.stream is not None:
            with contextlib.suppress(Exception):  # it ends in this very moment
                self._log.stream.close()
        self._changes.shutdown(wait=False, cancel_futures=True)

    async def give(self, name: str, content: bytes) -> None:
        try:
            await asyncio.to_thread(containers.give, self._client, self._made.container, name, content)
        except NotFound:  # it has ended
            pass
        except (DockerException, requests.exceptions.RequestException) as error:
            self._logger.warning("Run %s: %s could not be put into its container: %s", self.run_id, name, error)

    # -- what is changed while it runs -------------------------------------------------------------------------------

    def bind(self, cpus: tuple[int, ...]) -> bool:
        return self._change(cpuset_cpus=",".join(map(str, cpus)))

    def set_priority(self, weight: float) -> bool:
        return self._change(cpu_shares=max(_LEAST_SHARES, round(_FULL_SHARES * weight)))

    def set_duty(self, part: float) -> bool:
        full = part >= 1.0
        quota = -1 if full else max(_LEAST_QUOTA_US, round(part * max(1, self._made.cores) * _PERIOD_US))
        return self._change(cpu_period=_PERIOD_US, cpu_quota=quota)

    def busy_seconds(self) -> float | None:
        """What was measured when this was asked before: the engine takes its time, and nobody here waits for it."""
        if not self._watcher.done():
            self._changes.submit(self._measure)
        return self._busy_s

    def _change(self, **limits: Any) -> bool:
        if self._watcher.done():
            return False
        self._changes.submit(self._update, limits)
        return True

    def _update(self, limits: dict[str, Any]) -> None:
        try:
            self._client.api.update_container(self._made.container, **limits)
        except (DockerException, requests.exceptions.RequestException) as error:
            if not self._watcher.done():
                self._logger.warning("Run %s: its container could not be given %s: %s", self.run_id, limits, error)

    def _measure(self) -> None:
        try:
            seen = self._client.api.stats(self._made.container, stream=False, one_shot=True)
            self._busy_s = seen["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
        except (DockerException, requests.exceptions.RequestException, KeyError):
            self._busy_s = None

    def _signal(self, name: str) -> None:
        while not self._watcher.done():
            try:
                self._client.api.kill(self._made.container, signal=name)
            except (DockerException, requests.exceptions.RequestException) as error:
                if isinstance(error, APIError) and error.is_client_error():
                    return  # it has ended, or is about to
                time.sleep(_REACHED_AGAIN_S)  # the engine is away, or in trouble: the signal may have reached nobody
                continue
            return

    # -- watching ---------------------------------------------------------------------------------------------------

    async def _watch(self) -> ExitReport:
        blocks = self._blocks
        follower = threading.Thread(target=self._follow, args=(blocks,), name=f"output {self.run_id}", daemon=True)
        follower.start()
        lines = Lines(self._made.mark)
        while (block := await blocks.get()) is not None:
            self._room.release()
            await asyncio.sleep(0)  # a run that writes without end must not keep the worker from its work
            if isinstance(block, Exception):
                self._logger.warning("Run %s: the engine does not answer (%s); asking again.", self.run_id, block)
                continue
            for line in lines.feed(block):
                self._take(line)
        for line in lines.finish():
            self._take(line)
        report = ExitReport(None) if self._lost else await self._insist(self._report)
        if self._lost:
            self._released = True  # its thread ends when it is next heard from
            report = ExitReport(None, tail=tuple(self._tail), cause=self._lost, lost=True)
        try:
            await asyncio.to_thread(supervisor.write_json, str(self._dir / supervisor.EXIT), dataclasses.asdict(report))
        except OSError as error:  # its end is reported all the same; its container stays, for who looks after us
            self._logger.error("Run %s: its end could not be written down: %s", self.run_id, error)
        else:
            if not self._lost:
                await asyncio.to_thread(self._remove)  # what it said is safe now
        self._changes.shutdown(wait=False, cancel_futures=True)
        return report

    def _take(self, line: str | dict[str, Any]) -> None:
        if isinstance(line, str):
            self._tail.append(line)
            if self._echo is not None:
                with contextlib.suppress(OSError):  # where the worker's own output goes may be full, too
                    self._echo(line)
        elif "ended" in line:
            self._ended = line["ended"]
        elif not self._begun.done() and "ready" not in line:  # which it said before it was this run's
            self._begun.set_result(line)

    def _follow(self, blocks: asyncio.Queue[bytes | Exception | None]) -> None:
        """In a thread: hand on the container's output until it has ended. An engine that is away is asked again."""

        def hand_on(block: bytes | Exception | None) -> None:
            while not self._released and not self._room.acquire(timeout=1.0):
                pass
            if not self._released:
                self._loop.call_soon_threadsafe(blocks.put_nowait, block)

        api, told, seeded = self._client.api, False, self._since is None
        ended, complete, last_words = False, False, f'{self._made.mark} {{"ended"'.encode()
        while not self._released:
            try:
                if not seeded:  # what was said last before we came is part of the story, and has been repeated
                    self._seed(api.logs(self._made.container, tail=_TAIL_LINES, until=self._since))
                    seeded = True
                for block in self._log.read(follow=not ended, tail=_LAST_LINES if ended else "all"):
                    hand_on(block)
                    complete = complete or block.startswith(last_words)
                if ended:
                    break
                ended, told = not api.inspect_container(self._made.container)["State"]["Running"], False
                if ended and complete:
                    break
                # Busy engines end a log before its last lines: they are read once all of them have been written.
                time.sleep(0 if ended else _REACHED_AGAIN_S if self._log.complains else _ENDS_S)
            except NotFound:
                break
            except (DockerException, requests.exceptions.RequestException, HTTPError, OSError) as error:
                if not told and not containers.is_being_removed(error):
                    hand_on(error)
                    told = True
                if not self._released:
                    time.sleep(_REACHED_AGAIN_S)
        hand_on(None)

    def _seed(self, before: bytes) -> None:
        lines = Lines(self._made.mark)
        for line in (*lines.feed(before), *lines.finish()):
            if isinstance(line, str):
                self._tail.append(line)
            else:
                self._ended = line.get("ended", self._ended)

    def _report(self) -> ExitReport:
        """How it ended: by what its first process said, or, if that was killed, by what the engine knows."""
        state = self._state()
        tail = tuple(self._tail)
        if state is None and self._ended is None:
            # Another handle of the run, of the worker before us perhaps, notes the end before it removes the container.
            noted = read_report(self._dir, self._logger.error)
            return noted or ExitReport(None, tail=tail, cause="Somebody has removed its container.")
        state = state or {}
        cause, oom_kills = "", None
        if state.get("OOMKilled"):
            oom_kills = 1
            cause = (
                "The run used more memory than its container's limit: raise the limit, lower the batch size, or load "
                "less data at once."
            )
        if self._ended is not None:
            said = self._ended
            cause = said.get("cause", cause)
            return ExitReport(
                said["returncode"],
                said["max_rss_bytes"],
                said["cpu_seconds"],
                tail,
                said["ended_at"],
                cause,
                lost=said.get("lost", False),
                oom_kills=oom_kills or said.get("oom_kills"),
            )
        code = int(state["ExitCode"])
        if code == _NOBODY_SAW:
            return ExitReport(None, tail=tail, cause=_POWER_LOST, lost=True)
        killed = code > 128 and code - 128 in {int(one) for one in signal.Signals}
        cause = cause or str(state.get("Error") or "")
        return ExitReport(-(code - 128) if killed else code, tail=tail, cause=cause, oom_kills=oom_kills)

    def _state(self) -> dict[str, Any] | None:
        while not (self._lost or self._released):
            try:
                return dict(self._client.api.inspect_container(self._made.container)["State"])
            except NotFound:
                return None
            except (DockerException, requests.exceptions.RequestException):  # it is away, or in trouble
                time.sleep(_REACHED_AGAIN_S)
        return None

    def _remove(self) -> None:
        try:
            containers.remove(self._client, self._made.container)
        except (DockerException, requests.exceptions.RequestException) as error:
            self._logger.warning("Run %s: its container could not be removed: %s", self.run_id, error)


class _Ended(RunHandle):
    def __init__(self, run_id: str, pid: str, warm: bool, report: ExitReport) -> None:
        self.run_id, self.pid, self.warm, self._report = run_id, pid, warm, report

    async def wait(self) -> ExitReport:
        return self._report

    async def stop(self, grace_seconds: float) -> None:
        return


def read_report(run_dir: Path, say: Say) -> ExitReport | None:
    """The report that an earlier worker wrote down; None if it saw no end.

    Args:
        say: Told of a file that cannot be read.
    """
    return files.read(ExitReport, run_dir / supervisor.EXIT, say)


def read_made(run_dir: Path, say: Say) -> Made | None:
    """The container of a launch; None if none was made, or if that cannot be read any more.

    Args:
        say: Told of a file that cannot be read.
    """
    return files.read(Made, run_dir / supervisor.PROCESS, say)


def write_made(run_dir: Path, made: Made) -> None:
    """Note the container, before it starts."""
    supervisor.write_json(str(run_dir / supervisor.PROCESS), dataclasses.asdict(made))


__all__ = ["ContainerHandle", "Made", "read_made", "read_report", "write_made"]
