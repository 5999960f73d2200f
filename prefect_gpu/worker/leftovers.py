"""Which runs will not come back, so that what they have left may go."""

from __future__ import annotations

import logging
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound

from prefect_gpu.runtime.leftovers import Leftover
from prefect_gpu.worker.finalisation import persist


class PoolOwner:
    """Asks Prefect about the runs of one pool. An :class:`~prefect_gpu.runtime.leftovers.Owner`."""

    def __init__(self, client: PrefectClient, pool_name: str, logger: logging.Logger) -> None:
        self._client = client
        self._pool_name = pool_name
        self._logger = logger

    async def is_over(self, leftover: Leftover, since: float) -> bool:
        """See :meth:`~prefect_gpu.runtime.leftovers.Owner.is_over`. Runs of other pools are not ours to judge."""
        try:
            flow_run = await persist(lambda: self._client.read_flow_run(UUID(leftover.run_id)), self._logger)
        except ObjectNotFound:
            return False
        state = flow_run.state
        over = state is not None and state.is_final() and state.timestamp.timestamp() < since
        return over and flow_run.work_pool_name in (self._pool_name, None)
