"""Runs that leave their place and carry on later or elsewhere: saved first, stopped then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.launch.launch import Follower, Launch, Suspend
from prefect_gpu.scheduling.model.instructions import Expire, Move, Preempt
from prefect_gpu.training import protocol

PATIENCE_S = 60.0  # for a checkpoint; a run that does not save in that time carries on from its last one
_NEEDS_NO_STOP = (protocol.SAVING, protocol.FINISHED)  # it gives its devices back by itself


class Eviction(Follower):
    """Evicts runs.

    A run that trains is asked for a checkpoint and stopped when that is written; it does nothing between the two. One
    that only prepares is stopped at once, and one that saves, or has just done its last step, is left alone: it is
    about to end.

    Args:
        channel: Reaches the runs.
        save: Writes a run's record.
        logger: Told of what went wrong.
        patience_s: Seconds to wait for a checkpoint.
    """

    def __init__(
        self,
        channel: ChannelServer,
        save: Callable[[Launch], None],
        logger: Logger | LoggerAdapter[Any],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._channel = channel
        self._save = save
        self._logger = logger
        self._patience_s = patience_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def close(self) -> None:
        """Stop nobody any more."""
        for timer in self._timers.values():
            timer.cancel()

    def begin(self, run: Launch, why: Preempt | Move | Suspend | Expire) -> None:
        """Begin to evict a run. One that its user has suspended stays so, whatever the scheduler would do with it."""
        if isinstance(run.eviction, Suspend | Expire):
            return
        run.eviction = why
        if run.handle is None or run.phase in _NEEDS_NO_STOP:
            return  # whoever is launching it will see it
        if run.phase != protocol.TRAINING:
            self._stop(run)
            return
        self._spawn(self._channel.instruct(run.run_id, protocol.SAVE_CHECKPOINT, {"reason": why.reason}))
        loop = asyncio.get_running_loop()
        if (before := self._timers.pop(run.run_id, None)) is not None:
            before.cancel()
        self._timers[run.run_id] = loop.call_later(self._patience_s, self._give_up, run)

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`. Once a checkpoint is written, or cannot be, the run is stopped.

        One that tries again in its process, having crashed or saved, has nothing to save, and is stopped at once.
        """
        again = kind == protocol.PHASE and launch.phase == protocol.PREPARING
        if not (again or kind == protocol.CHECKPOINT):
            return ()
        if launch.eviction is None or launch.handle is None or launch.phase in _NEEDS_NO_STOP or launch.record.leaving:
            return ()
        if (data.get("last") or data.get("unasked")) and not again:  # it trains on after one that was not asked for
            return ()
        error = data.get("error")
        if error:
            self._logger.warning(
                "Run %s could not save its checkpoint (%s): it will carry on from the one before.",
                launch.record.name,
                error,
            )
        self._stop(launch)
        return ()

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        launch.gone.set()
        timer = self._timers.pop(launch.run_id, None)
        if timer is not None:
            timer.cancel()

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. It may never have had a process."""
        self.ended(launch, at)

    @staticmethod
    def ahead_of(run: Launch, among: Iterable[Launch]) -> list[Launch]:
        """Those that are leaving a run's devices, for it to wait until each is gone.

        To be asked when the run is granted its devices, and not later: who is granted them after it waits for it, and
        may be leaving as well by then.
        """
        devices = set(run.record.placement.all_devices)
        return [
            other
            for other in among
            if other is not run and other.eviction and devices.intersection(other.record.placement.all_devices)
        ]

    def _give_up(self, run: Launch) -> None:
        if run.phase in _NEEDS_NO_STOP or run.record.leaving:
            return
        self._logger.warning(
            "Run %s saved no checkpoint within %.0f s: it will carry on from its last one.",
            run.record.name,
            self._patience_s,
        )
        self._stop(run)

    def _stop(self, run: Launch) -> None:
        assert run.eviction is not None and run.handle is not None
        # Before the signal: a worker that takes over must not take the end of the process for a crash.
        run.record.leaving = run.eviction.reason
        self._save(run)
        self._spawn(run.handle.stop(0))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
