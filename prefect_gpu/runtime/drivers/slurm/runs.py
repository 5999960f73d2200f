"""The runs on nodes of allocations, as the worker follows them: started, found again, and heard of until they end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
from collections.abc import Awaitable, Callable, Collection, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.output import tail_lines
from prefect_gpu.runtime.drivers.slurm import sent, words
from prefect_gpu.runtime.drivers.slurm.handle import EndedHandle, SlurmHandle, ended_with
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub
from prefect_gpu.runtime.drivers.slurm.nodes import Lent
from prefect_gpu.runtime.drivers.slurm.place import facts_of, take, taken_by
from prefect_gpu.training.protocol import MAX_FRAME_BYTES

_LAUNCH_S = 60.0  # then the run is started elsewhere
_FRAME = MAX_FRAME_BYTES - 4096  # for what is to be started: the rest is for the words around it


class Runs:
    """See the module.

    Args:
        lent: Gives the node of a name; None: there is none now.
        connecting: Gives what waits for the agents that may be a node's.
        is_lent: Whether a node's allocation is there, as far as anybody knows.
        loss_of: Gives the end of a run, called so, that was found after the allocation of a node had ended.
        echo: Called with a run's label and each line of its output.
        comes_back_s: For so long the agent of an adopted run is waited for.
    """

    def __init__(
        self,
        hub: AgentHub,
        *,
        lent: Callable[[str], Lent | None],
        connecting: Callable[[str], Sequence[asyncio.Task[None]]],
        is_lent: Callable[[str], bool],
        loss_of: Callable[[str, str], Awaitable[ExitReport]],
        echo: Callable[[str, str], None],
        comes_back_s: float,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._hub, self._lent, self._connecting, self._is_lent, self._loss_of = hub, lent, connecting, is_lent, loss_of
        self._echo, self._comes_back_s, self._logger = echo, comes_back_s, logger
        self._handles: dict[str, SlurmHandle] = {}  # by the launch's folder

    def release(self) -> None:
        """Follow none any more. They go on."""
        for handle in tuple(self._handles.values()):
            handle.release()

    def are_on(self, nodes: Collection[str]) -> bool:
        """Whether any is on one of these nodes."""
        return any(handle.node in nodes for handle in self._handles.values())

    def of(self, agents: Collection[str]) -> list[str]:
        """The names of those that these agents watch over."""
        return [handle.run_id for handle in self._handles.values() if handle.agent in agents]

    def lose(self, agents: Collection[str], end_of: Callable[[str], ExitReport]) -> None:
        """The allocation of these agents is over, and so is whatever ran in it: each, by its name, with this end."""
        for handle in [one for one in self._handles.values() if one.agent in agents]:
            handle.lose(end_of(handle.run_id))

    def heard(self, agent: str, kind: str, data: dict[str, Any]) -> None:
        """An agent has said something of a run."""
        run_dir = str(data.pop("run_dir", ""))
        handle = self._handles.get(run_dir)
        if kind == words.OUTPUT:
            sent.add_output(Path(run_dir), data)
            return
        report: ExitReport = files.build(ExitReport, data)
        if sent.is_sent(Path(run_dir)):
            try:
                sent.note_end(Path(run_dir), report)
            except OSError as error:  # it is reported all the same, and what the node has of it stays there
                self._logger.error("The end of a run could not be written down in %s: %s", run_dir, error)
            else:
                self._hub.tell(agent, words.FORGET, run_dir)
        elif not Path(run_dir).exists():  # the run is over, and nobody will ever ask for it again
            self._hub.tell(agent, words.FORGET, run_dir)
        if handle is not None:
            handle.exited(dataclasses.replace(report, tail=tail_lines(handle.folder / supervisor.OUTPUT)))

    # -- starting -------------------------------------------------------------------------------------------------

    async def launch(self, lent: Lent, spec: LaunchSpec, run_dir: Path) -> RunHandle:
        """Start a run on a node; see :meth:`.Driver.launch`."""
        name, is_sent = spec.label or spec.run_id, not lent.pilot.record.shared
        if not await asyncio.to_thread(take, run_dir, lent.node.id, sent=is_sent):
            raise LaunchError("the launch was revoked, or has been started already")
        launching = asyncio.ensure_future((self._send if is_sent else self._launch)(lent, spec, run_dir))
        try:
            told = await asyncio.shield(launching)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(launching, lent, run_dir))
            raise
        self._hub.must_be_there(lent.agent)  # its allocation may have ended while that was written down
        return self._follow(spec.run_id, run_dir, lent, told, 0, name, spec.stream_output)

    async def _launch(self, lent: Lent, spec: LaunchSpec, run_dir: Path) -> dict[str, Any]:
        words.write_secret(run_dir / words.SPEC, words.spec_as_json(spec))
        asking = asyncio.ensure_future(self._hub.ask(lent.agent, words.LAUNCH, run_dir=str(run_dir)))
        try:
            done, _ = await asyncio.wait((asking,), timeout=_LAUNCH_S)
            if not done and await asyncio.to_thread(supervisor.claim, str(run_dir), {"revoked": True}):
                asking.cancel()
                failed = LaunchError(f"the agent of node {lent.node.id} has not answered for {_LAUNCH_S:.0f} s")
                failed.away = True  # and it will never start there now
                raise failed
            return await asking
        finally:
            (run_dir / words.SPEC).unlink(missing_ok=True)

    async def _send(self, lent: Lent, spec: LaunchSpec, run_dir: Path) -> dict[str, Any]:
        """Start it where this folder is not seen. Nobody can take that back: an answer counts, or the node's end."""
        content = words.spec_as_json(spec)
        if len(json.dumps(content)) > _FRAME:
            raise LaunchError(f"its environment and its command are larger than {_FRAME >> 10} KiB, and cannot be sent")
        told = await self._hub.ask(lent.agent, words.LAUNCH, run_dir=str(run_dir), spec=content)
        try:
            await asyncio.to_thread(supervisor.write_json, str(run_dir / supervisor.PROCESS), told)
        except OSError as error:  # whoever comes later knows less of it, and that it has begun all the same
            self._logger.error("%s could not be written: %s", run_dir / supervisor.PROCESS, error)
        return told

    async def _abandon(self, launching: asyncio.Future[dict[str, Any]], lent: Lent, run_dir: Path) -> None:
        with contextlib.suppress(LaunchError):
            await launching
            await self._hub.ask(lent.agent, words.STOP, run_dir=str(run_dir), grace_seconds=0)

    # -- finding again --------------------------------------------------------------------------------------------

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        """Take over what an earlier worker has started; see :meth:`.Driver.adopt`."""
        if (known := self._handles.get(str(run_dir))) is not None:
            return known  # of a gang that is looked for again, as another instance was out of reach
        if await asyncio.to_thread(take, run_dir, ""):
            return None  # nobody may start it any more
        node = taken_by(run_dir)
        if not node:
            return None
        if (report := ended_with(run_dir, self._logger.error)) is not None:
            # The agent may have been ended before it could leave its mark, and the allocation is over.
            cut_off = report.lost or (report.returncode in words.ENDED_BY_SLURM and not self._is_lent(node))
            report = await self._loss_of(run_id, node) if cut_off else report
            return EndedHandle(run_id, node, report, **facts_of(run_dir))
        lent, connecting = self._lent(node), self._connecting(node)
        if lent is None and connecting:
            await asyncio.wait(connecting, timeout=self._comes_back_s)
            lent = self._lent(node)
            if lent is None and self._is_lent(node):
                raise LaunchError(f"The agent of node {node} is not connected")
        if lent is None:
            # Its allocation is over. Nothing that had not begun by then ever will; of what was sent, nobody can say.
            if not sent.is_sent(run_dir) and not (run_dir / supervisor.PROCESS).exists():
                await asyncio.to_thread(supervisor.claim, str(run_dir), {"revoked": True})
                return None
            return EndedHandle(run_id, node, await self._loss_of(run_id, node), **facts_of(run_dir))
        told = await self._hub.ask(lent.agent, words.ADOPT, run_id=run_id, run_dir=str(run_dir))
        if not told:
            return None
        output = run_dir / supervisor.OUTPUT
        offset = output.stat().st_size if output.exists() else 0
        return self._follow(run_id, run_dir, lent, told, offset, run_id, True)

    def _follow(
        self, run_id: str, run_dir: Path, lent: Lent, told: dict[str, Any], offset: int, label: str, stream: bool
    ) -> SlurmHandle:
        handle = SlurmHandle(
            run_id,
            run_dir,
            lent.node.id,
            told,
            hub=self._hub,
            agent=lent.agent,
            adjustable=lent.adjustable,
            echo=functools.partial(self._echo, label) if stream else None,
            offset=offset,
            logger=self._logger,
        )
        self._handles[str(run_dir)] = handle
        handle.when_over(lambda: self._handles.pop(str(run_dir), None))
        if (report := ended_with(run_dir, self._logger.error)) is not None:  # it was quicker than the answer
            handle.exited(report)
        return handle
