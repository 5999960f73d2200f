"""What owners have had until now, by the history and by what runs: told to the scheduler once a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.runtime.tasks import Tasks, in_own_thread
from prefect_gpu.scheduling.fair_share.replay import HALF_LIVES, Stay, replay
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.shares import Shares
from prefect_gpu.storage.history import History
from prefect_gpu.storage.row import StayRow
from prefect_gpu.training import protocol

_AGAIN_S = 10.0


class StayKeeper(Follower):
    """Keeps what each launch held, as soon as it is over.

    Args:
        keep: Called in a thread.
    """

    def __init__(self, keep: Callable[[StayRow], None], tasks: Tasks) -> None:
        self._keep, self._tasks = keep, tasks

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        stay = _stay_of(launch, at)
        if stay is None or stay.granted is None:
            return
        row = StayRow(
            run_id=launch.run_id,
            launch=launch.folder.name.rpartition("-")[2],
            pool=launch.record.pool,
            owner=stay.owner,
            devices=stay.devices,
            submitted_at=CLOCK.unix(stay.submitted),
            granted_at=CLOCK.unix(stay.granted),
            ended_at=CLOCK.unix(at),
        )
        self._tasks.start(asyncio.to_thread(self._keep, row), f"stay-{launch.folder.name}")


def _stay_of(launch: Launch, until: float | None) -> Stay | None:
    """What a launch has held until now; None: nothing, or nobody knows since when."""
    record, times = launch.record, launch.record.times
    # Prepared behind another run, it held nothing of its own before it trained.
    granted = times.get(protocol.TRAINING) if record.gated else times.get("granted")
    count = len(record.placement.all_devices) / (1 + len(launch.company) if record.placement.shared else 1)
    if granted is None or not count or (until is not None and until <= granted):
        return None
    return Stay(record.request.owner, count, min(times.get("submitted", granted), granted), granted, until)


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
        present, now = list(self._present(shares)), CLOCK()

        def count() -> ev.UsageLearned:
            rows = self._opened().stays(self._pool, CLOCK.unix(since))
            stays = [
                Stay(row.owner, row.devices, *map(CLOCK.of, (row.submitted_at, row.granted_at, row.ended_at)))
                for row in rows
            ]
            usage = replay(shares, devices, [*stays, *present], now)
            return ev.UsageLearned(tuple(sorted(usage.had.items())), tuple(sorted(usage.owed.items())))

        self._controller.handle(await in_own_thread(count, "prefect-gpu-usage"))

    def _present(self, shares: Shares) -> Iterator[Stay]:
        """What runs and waits now, and is in no history yet. What an owner may never have is not owed to it."""
        for run in self._controller.runs.values():
            stay = _stay_of(run, None)
            if stay is not None:
                yield stay
        state = self._controller.scheduler.state
        waiting = state.waiting()
        tree = Tree(shares, {job.request.owner for job in waiting})
        for job in waiting:
            owner, devices = job.request.owner, job.request.total_gpus
            never = tree.never(job.request, state.device_count, stops=True)
            if devices and job.due_at <= CLOCK() and not never:
                yield Stay(owner, float(devices), job.not_before, None)
