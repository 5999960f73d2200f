"""What owners have had until now, by the history and by what runs: told to the scheduler once a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.scheduling.fair_share.replay import HALF_LIVES, Stay, replay
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.shares import Shares
from prefect_gpu.storage.history import History

_AGAIN_S = 10.0


class UsageHistory:
    """Counts anew what owners have had, and were owed, from the rows of the history.

    So a worker that starts again, or another one that leads from now on, knows what the one before it knew.

    Args:
        opened: The history; called in a thread. It raises what is wrong with one that cannot be used now.
        pool: Only runs of this one count.
    """

    def __init__(
        self, opened: Callable[[], History], pool: str, controller: Controller, logger: logging.Logger
    ) -> None:
        self._opened, self._pool, self._controller, self._logger = opened, pool, controller, logger

    async def run(self) -> None:
        """Tell it, as soon as it can be told."""
        while True:
            state = self._controller.scheduler.state
            shares = state.quotas.shares
            if shares is not None and state.device_count:
                try:
                    await self._tell(shares, state.device_count)
                    return
                except Exception as error:
                    self._logger.warning("What owners have had could not be read, and is read again: %s", error)
                    await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(0.2)  # until the limits have been read

    async def _tell(self, shares: Shares, devices: int) -> None:
        since = CLOCK() - HALF_LIVES * shares.half_life_s
        present, now = list(self._present()), CLOCK()

        def count() -> ev.UsageLearned:
            stays = [Stay(*one) for one in self._opened().stays(self._pool, since)]
            usage = replay(shares, devices, [*stays, *present], now)
            return ev.UsageLearned(tuple(sorted(usage.had.items())), tuple(sorted(usage.owed.items())))

        self._controller.handle(await in_own_thread(count, "prefect-gpu-usage"))

    def _present(self) -> Iterator[Stay]:
        """What runs and waits now, and is in no history yet."""
        for run in self._controller.runs.values():
            times, place = run.record.times, run.record.placement
            granted, count = times.get("granted"), float(len(place.all_devices))
            if granted is not None and count:
                yield Stay(run.record.request.owner, count, times.get("submitted", granted), granted)
        for job in self._controller.scheduler.state.waiting():
            if job.request.total_gpus and job.due_at <= CLOCK():
                yield Stay(job.request.owner, float(job.request.total_gpus), job.not_before, None)
