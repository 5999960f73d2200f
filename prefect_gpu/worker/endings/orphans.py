"""Runs that Prefect believes to run here, and of which nothing is left: each is brought to its end, or waits again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from uuid import UUID

import psutil
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound

from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.worker.endings.claims import Claims, for_scope
from prefect_gpu.worker.endings.settling import Settling, undisturbed
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.server_clock import ServerClock
from prefect_gpu.worker.server.unreadable import read_run

_ANOTHERS_AGAIN_S = 30.0  # a worker that was killed counts as online for some more of its heartbeats
_CONTAINER_ID = 12  # letters of it in an infrastructure_pid
_LARGEST_PID = 2**22  # that Linux gives; psutil cannot ask for any number that somebody has written there
_NO_RECORD = (
    "Its worker is gone. Another worker took over, had no record of the run, and removed its "
    "containers. Workers that share a state folder take running containers over."
)


async def _nobody(_: str) -> bool:
    return False


class Orphans:
    """Settles such runs.

    Args:
        host_prefix: What the ``infrastructure_pid`` of this machine's processes begins with.
        scope: See :meth:`prefect_gpu.runtime.drivers.base.Driver.scope`; empty: runs are such processes.
        clock: The server's.
        online: Whether another worker of the pool that has this name is online.
    """

    def __init__(
        self,
        asking: Asking,
        host_prefix: str,
        scope: str = "",
        clock: ServerClock | None = None,
        online: Callable[[str], Awaitable[bool]] = _nobody,
    ) -> None:
        self._asking, self._client = asking, asking.client
        self._claims = Claims(asking.client)
        self._settling = Settling(asking.client, clock or ServerClock(), asking.logger)
        self._host_prefix, self._scope, self._online = host_prefix, scope, online

    async def cancel_if_ours(self, flow_run: FlowRun) -> None:
        """Finish a cancellation that no process is left to finish: it never had one, or ours is gone.

        A run in a container (``node:container``) is ours if it was claimed for our scope, and a container that nobody
        follows was removed.
        """
        if not flow_run.infrastructure_pid or (
            await self._claims.last_has(flow_run.id, for_scope(self._scope))
            if self._scope
            else self._gone(flow_run) and not await self._is_anothers(flow_run.id)
        ):
            await self._settling.cancel(flow_run)

    async def bury(self, flow_runs: Iterable[FlowRun], ours: Collection[str]) -> None:
        """Settle those of which neither record nor process is left.

        Here is this machine, or an Engine or a Swarm that we lead now: then these are the runs that an earlier leader
        claimed for it, and everything that is not ours must have been removed there before. What had not begun goes
        back to its queue; what ran is tried again if it has retries left, and else it has crashed. A process of a run
        that another worker has claimed is that one's, until it is not online any more.

        Args:
            flow_runs: Those that may be such runs, as they were read at some time.
            ours: The runs that are launched here. It is looked at for each run anew: they start and end meanwhile.
        """
        left = [one.id for one in flow_runs if str(one.id) not in ours and self._may_be_one(one)]
        while left:
            anothers = []
            for run_id in left:
                with suppress(ObjectNotFound):
                    settle = partial(self._settle, run_id, ours)
                    if not await self._asking.persist(partial(undisturbed, settle)):
                        anothers.append(run_id)
            left = anothers
            if left:
                await asyncio.sleep(_ANOTHERS_AGAIN_S)

    async def _settle(self, run_id: UUID, ours: Collection[str]) -> bool:
        """Returns whether it is settled: it is not while another worker may do that."""
        claimed = not self._scope or await self._claims.last_has(run_id, for_scope(self._scope))
        # One of ours may have ended and been finalised since the run was read, so that it looked like an orphan.
        flow_run = await read_run(self._client, run_id)
        if str(run_id) in ours or not claimed or not self._may_be_one(flow_run):
            return True
        if not self._scope and await self._is_anothers(run_id):
            return False
        if flow_run.state_type is StateType.PENDING:
            words = "The worker that had claimed it is gone, and no container of it is left."
            await self._settling.give_back(flow_run, words)
        elif flow_run.state_type is StateType.CANCELLING:
            await self._settling.cancel(flow_run)
        else:
            await self._settling.crash(flow_run, ExitReport(returncode=None, cause=_NO_RECORD if self._scope else ""))
        return True

    async def _is_anothers(self, run_id: UUID) -> bool:
        """Whether another worker that is online has claimed the run: it knows what becomes of the process.

        Machines may have one name, and containers, which have processes of their own, the name of their machine. So
        that there is no such process here does not mean that there is none.
        """
        worker = await self._claims.worker(run_id)
        return bool(worker) and await self._online(worker)

    def _may_be_one(self, flow_run: FlowRun) -> bool:
        """Whether Prefect believes that the run runs, and no process of this machine shows that it does.

        A pending run does not count on this machine: its pid is that of an earlier try, and it may be on its way under
        another worker.
        """
        types = {StateType.RUNNING, StateType.CANCELLING} | ({StateType.PENDING} if self._scope else set())
        believed = flow_run.state is not None and flow_run.state.type in types
        return believed and (bool(self._scope) or self._gone(flow_run))

    def _gone(self, flow_run: FlowRun) -> bool:
        """Whether it was a process of this machine and is no more.

        A node may be called as this machine is; but the twelve letters of a container's id are too many for a pid.
        """
        pid = flow_run.infrastructure_pid or ""
        number = pid.removeprefix(self._host_prefix)
        ours = pid.startswith(self._host_prefix) and number.isdecimal() and len(number) < _CONTAINER_ID
        return ours and (int(number) > _LARGEST_PID or not psutil.pid_exists(int(number)))
