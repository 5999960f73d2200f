"""A run on a node of an allocation, as the worker sees it: through the node's agent, and through the run's files."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from collections.abc import Callable
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchError, RunHandle
from prefect_gpu.runtime.drivers.launched import Ended, Say
from prefect_gpu.runtime.drivers.output import OutputTail, tail_lines
from prefect_gpu.runtime.drivers.slurm import sent, words
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub


class SlurmHandle(RunHandle):
    """A run of the slurm driver.

    Args:
        run_dir: The folder of the launch.
        node: The node that it is on.
        started: What the agent says of it: ``pid`` and ``warm``.
        agent: Who watches over it.
        adjustable: Whether its share of the processor can be changed there.
        echo: Given each line of output from ``offset`` on, or None.
        offset: Bytes of output that have been repeated before.
    """

    def __init__(
        self,
        run_id: str,
        run_dir: Path,
        node: str,
        started: dict[str, Any],
        *,
        hub: AgentHub,
        agent: str,
        adjustable: bool,
        echo: Callable[[str], None] | None,
        offset: int,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self.run_id, self.node, self.agent = run_id, node, agent
        self.pid, self.warm = f"{node}:{started['pid']}", bool(started["warm"])
        self.folder, self._hub, self._adjustable, self._logger = run_dir, hub, adjustable, logger
        self._ended: asyncio.Future[ExitReport] = asyncio.get_running_loop().create_future()
        self._tail = OutputTail(run_dir / supervisor.OUTPUT, offset, echo) if echo else None
        self._watcher = asyncio.create_task(self._watch(), name=f"run {run_id}")

    # -- its end --------------------------------------------------------------------------------------------------

    def exited(self, report: ExitReport) -> None:
        """The agent has seen its end."""
        if not self._ended.done():
            self._ended.set_result(report)

    def lose(self, report: ExitReport) -> None:
        """Its allocation is over, and so is the run, if nothing else is known of its end."""
        self.exited(ended_with(self.folder, self._logger.error, report) or report)

    def release(self) -> None:
        """Stop watching; the run goes on. Whoever still waits for it is cancelled."""
        self._watcher.cancel()

    def when_over(self, call: Callable[[], object]) -> None:
        """Call this when the run is over, or is watched no more."""
        self._watcher.add_done_callback(lambda _: call())

    async def wait(self) -> ExitReport:
        return await asyncio.shield(self._watcher)

    async def _watch(self) -> ExitReport:
        following = asyncio.create_task(self._tail.run()) if self._tail else None
        try:
            report = await self._ended
            if following is not None and self._tail is not None:
                self._tail.finish()
                await asyncio.wait((following,))
                if error := following.exception():
                    self._logger.warning("Run %s: its output could not be repeated: %s", self.run_id, error)
        finally:
            if following is not None:
                following.cancel()
        return report

    # -- what it is told ------------------------------------------------------------------------------------------

    async def announce_cancellation(self) -> None:
        await self._ask(words.CANCELLED)

    async def relinquish(self) -> None:
        await self._ask(words.RELINQUISHED)

    async def give(self, name: str, content: bytes) -> None:
        if sent.is_sent(self.folder):
            await self._ask(words.GIVE, name=name, content=base64.b64encode(content).decode())

    async def stop(self, grace_seconds: float) -> None:
        if not self._ended.done():
            await self._ask(words.STOP, grace_seconds=grace_seconds)
        await self.wait()

    def bind(self, cpus: tuple[int, ...]) -> bool:
        return self._tell(words.BIND, cpus=list(cpus))

    def set_priority(self, weight: float) -> bool:
        return self._adjustable and self._tell(words.PRIORITY, weight=weight)

    def set_duty(self, part: float) -> bool:
        return self._tell(words.DUTY, part=part)

    async def _ask(self, what: str, **data: Any) -> None:
        try:
            await self._hub.ask(self.agent, what, run_dir=str(self.folder), **data)
        except LaunchError as error:  # its allocation ended meanwhile, and the run with it
            self._logger.debug("Run %s could not be asked to %s: %s", self.run_id, what, error)

    def _tell(self, what: str, **data: Any) -> bool:
        if self._ended.done():
            return False
        self._hub.tell(self.agent, what, str(self.folder), **data)
        return True


class EndedHandle(RunHandle):
    """A run whose end is known already."""

    def __init__(self, run_id: str, node: str, report: ExitReport, *, pid: int = 0, warm: bool = False) -> None:
        self.run_id, self.pid, self.warm, self._report = run_id, f"{node}:{pid}", warm, report

    async def wait(self) -> ExitReport:
        return self._report

    async def stop(self, grace_seconds: float) -> None:
        return


def ended_with(run_dir: Path, say: Say, cut_off: ExitReport | None = None) -> ExitReport | None:
    """What the run's supervisor has written of its end, or what its node has sent of it; None if there is nothing.

    Args:
        say: Told of a file that makes no sense.
        cut_off: How a run ended that was ended because its allocation was; None: it is not known to be over.
    """
    if sent.is_sent(run_dir):
        report: ExitReport | None = files.read(ExitReport, run_dir / supervisor.EXIT, say)
        tail = tail_lines(run_dir / supervisor.OUTPUT)
        return dataclasses.replace(report, tail=tail) if report is not None else None
    ended = files.read(Ended, run_dir / supervisor.EXIT, say)
    if ended is None:
        return None
    # The agent may have been ended before it could leave its mark.
    by_its_end = cut_off is not None and ended.returncode in words.ENDED_BY_SLURM
    if ended.returncode != 0 and (by_its_end or (run_dir / words.CUT_OFF).exists()):
        return cut_off or lost("Its allocation has ended.")
    return ended.report(tail_lines(run_dir / supervisor.OUTPUT))


def lost(cause: str, *, out_of_memory: bool = False) -> ExitReport:
    """The end of a run whose allocation has ended under it.

    Args:
        out_of_memory: Whether that was because of the main memory that the run took. Else it may carry on elsewhere.
    """
    carries_on = not out_of_memory
    return ExitReport(None, cause=cause, lost=carries_on, carries_on=carries_on, oom_kills=1 if out_of_memory else None)
