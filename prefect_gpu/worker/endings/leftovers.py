"""Which runs will not come back, so that what they have left may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound

from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.pool import PoolView

_LOOK_EVERY_S = 20.0


class PoolOwner:
    """Asks Prefect about the runs of one pool. An :class:`~prefect_gpu.runtime.leftovers.Owner`."""

    def __init__(self, asking: Asking, pool: PoolView, pool_name: str) -> None:
        self._asking = asking
        self._pool = pool
        self._pool_name = pool_name

    async def over(self, runs: Mapping[str, str], since: float) -> AsyncIterator[str]:
        """See :meth:`~prefect_gpu.runtime.leftovers.Owner.over`.

        Runs of other pools are not ours to judge. Of those that Prefect does not have, it must be known which pool they
        were started in, and that must be ours; and Prefect must not have them for some time.
        """
        found = await self._read(runs)
        for flow_run in found:
            if self._is_over(flow_run, since) and await self._is_still_over(flow_run.id, since):
                yield str(flow_run.id)
        missing = {run_id for run_id, pool_id in runs.items() if pool_id == self._asking.pool_id}
        missing -= {str(run.id) for run in found}
        absence = self._asking.absence()
        while missing and not await absence.is_believed():
            await asyncio.sleep(min(_LOOK_EVERY_S, self._asking.believed_after_s / 3))
            missing -= {str(run.id) for run in await self._read(missing)}
        for run_id in missing:
            yield run_id

    async def _read(self, run_ids: Iterable[str]) -> list[FlowRun]:
        return await self._asking.persist(lambda: self._pool.runs_by_id(map(UUID, run_ids)))

    async def _is_still_over(self, run_id: UUID, since: float) -> bool:
        """Its user may have let it run again, while what others had left was removed."""
        try:
            again = await self._asking.persist(partial(self._asking.client.read_flow_run, run_id))
        except ObjectNotFound:
            return False
        return self._is_over(again, since)

    def _is_over(self, flow_run: FlowRun, since: float) -> bool:
        state = flow_run.state
        over = state is not None and state.is_final() and state.timestamp.timestamp() < since
        return over and flow_run.work_pool_name in (self._pool_name, None)
