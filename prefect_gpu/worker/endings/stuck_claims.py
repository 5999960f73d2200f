"""A run that Prefect shows as claimed by this worker, which does not launch it, goes back to its queue.

Nothing is meant to come to that: a launch follows each claim, or the claim is taken back. But whatever goes wrong in
between, no worker touches such a run any more, and it would stay pending for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound

from prefect_gpu.worker.endings.claims import claimed_for
from prefect_gpu.worker.endings.settling import OvertakenError, Settling
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.pool import PoolView
from prefect_gpu.worker.server.unreadable import read_run

_LOOK_EVERY_S = 60.0
_REMEMBERED = 10_000  # launches of this session; a claim of an earlier one is seen to when the session begins


class StuckClaims:
    """Finds such runs: those that are seen so twice in a row, a minute apart, in the same state.

    Args:
        launched: Gives the runs that are launched, or about to be.
    """

    def __init__(
        self,
        pool: PoolView,
        asking: Asking,
        launched: Callable[[], Container[str]],
    ) -> None:
        self._pool = pool
        self._client = asking.client
        self._settling = Settling(asking.client, pool.clock, asking.logger)
        self._launched = launched
        self._logger = asking.logger
        self._folders: deque[str] = deque(maxlen=_REMEMBERED)
        self._seen: dict[UUID, UUID] = {}  # by run: the state that it was in at the last look

    def note(self, folder: str) -> None:
        """A run is about to be claimed for the launch whose folder has this name."""
        self._folders.append(folder)

    async def run(self) -> None:
        """Look every minute, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look once. Other workers' claims are theirs."""
        seen: dict[UUID, UUID] = {}
        for flow_run in await self._pool.runs_in_state(StateType.PENDING):
            if flow_run.state is None or str(flow_run.id) in self._launched() or not self._is_ours(flow_run):
                continue
            if self._seen.get(flow_run.id) == flow_run.state.id and await self._given_back(flow_run):
                self._logger.warning("Run %s was claimed and not launched; it waits again.", flow_run.name)
            else:
                seen[flow_run.id] = flow_run.state.id
        self._seen = seen

    def _is_ours(self, flow_run: FlowRun) -> bool:
        assert flow_run.state is not None
        return claimed_for(flow_run.state.message or "") in self._folders

    async def _given_back(self, seen: FlowRun) -> bool:
        """Whether it waits again. It does not if it has come to another state, was deleted, or is launched by now."""
        assert seen.state is not None
        with suppress(ObjectNotFound, OvertakenError):
            flow_run = await read_run(self._client, seen.id)
            if flow_run.state is None or flow_run.state.id != seen.state.id or str(seen.id) in self._launched():
                return False
            await self._settling.give_back(flow_run, "Its claim came to nothing; the run had not begun.")
            return True
        return False
