"""Has it written to the history how much two runs slow each other down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.host import Host
from prefect_gpu.runtime.tasks import Tasks
from prefect_gpu.storage.row import ContentionRow


class ContentionRows:
    """Keeps each of them at once: one of the two runs may be stopped for it now.

    Args:
        host: Writes to the history.
        may_write: Whether this worker may still write at all.
    """

    def __init__(
        self,
        host: Host,
        may_write: Callable[[], bool],
        clock: Clock,
        tasks: Tasks,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._host, self._may_write, self._clock, self._tasks, self._logger = host, may_write, clock, tasks, logger

    def keep(self, row: ContentionRow) -> None:
        """Have it written beside whatever goes on."""
        if self._may_write():
            self._tasks.start(self._keep(row), f"contention-{row.run_id}")

    async def _keep(self, row: ContentionRow) -> None:
        try:
            dated = replace(row, measured_at=self._clock.unix(row.measured_at))
            await asyncio.to_thread(self._host.record_contention, dated)
        except Exception as error:  # the scheduler has been told: only the next worker will not know
            self._logger.warning("The slowdown of run %s could not be recorded: %s", row.run_id, error)
