"""Work that goes on beside whoever began it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
_FIRST_PAUSE_S = 0.5  # from a failure to the next try; then twice as long each time
_LONGEST_PAUSE_S = 10.0
_WELL_S = 60.0  # work that has gone on for so long was well, whatever comes then


async def in_own_thread(work: Callable[[], T], name: str) -> T:
    """Do something in a thread of its own, which may die with the process: nothing that stops waits for it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        if not done.done():
            result()

    def target() -> None:
        try:
            found = work()
            settled = partial(settle, partial(done.set_result, found))
        except Exception as error:
            settled = partial(settle, partial(done.set_exception, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settled)

    threading.Thread(target=target, name=name, daemon=True).start()
    return await done


@dataclass
class Failing:
    """Work that fails again and again.

    Attributes:
        since: When that began, in monotonic seconds.
        last: When it failed last.
        error: Why.
    """

    since: float
    last: float
    error: Exception


class Tasks:
    """Holds on to tasks until they are done, and says what went wrong in them.

    Args:
        away: Errors which say that somebody else is away, and nothing of the work: they are no news, and no illness.
        clock: Monotonic seconds; tests may replace it.
    """

    def __init__(
        self,
        logger: logging.Logger | logging.LoggerAdapter[Any],
        away: tuple[type[Exception], ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._away = away
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failing: dict[str, Failing] = {}

    def start(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Begin it; the name is for the log."""
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, Any]], name: str) -> None:
        """Begin work that is to go on, unless it does: whenever it fails it begins anew, after a pause."""
        if not self.has(name):
            self.start(self.insist(work, name), name)

    async def insist(self, work: Callable[[], Awaitable[T]], name: str) -> T:
        """Do the work, again and again with longer and longer pauses, until it succeeds.

        Returns:
            What it gives.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            began = self._clock()
            try:
                done = await work()
            except Exception as error:
                if self._clock() - began > _WELL_S:
                    pause_s = _FIRST_PAUSE_S
                    self._failing.pop(name, None)
                self._failed(name, error, pause_s)
            else:
                self._failing.pop(name, None)
                return done
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    def _failed(self, name: str, error: Exception, pause_s: float) -> None:
        now, before, away = self._clock(), self._failing.get(name), isinstance(error, self._away)
        if away:
            self._failing.pop(name, None)
        else:
            self._failing[name] = Failing(before.since if before is not None else now, now, error)
        if away or (before is not None and repr(before.error) == repr(error)):
            self._logger.debug("%s failed again, and is begun anew in %.1f s: %r", name, pause_s, error)
        else:
            self._logger.error("%s failed, and is begun anew in %.1f s", name, pause_s, exc_info=error)

    def ill(self, for_s: float = _WELL_S) -> dict[str, Failing]:
        """What has done nothing but fail for so long, by name. May be asked from any thread."""
        now = self._clock()
        return {
            name: one
            for name, one in list(self._failing.items())
            if one.last - one.since >= for_s and now - one.last <= _WELL_S
        }

    def has(self, name: str) -> bool:
        """Whether work of that name is being done."""
        return any(task.get_name() == name for task in self._tasks)

    def cancel(self) -> None:
        """Do none of it any more."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Do none of it any more, and wait until it has come to rest."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:  # a bug; where it matters, a restart makes up for it
            self._logger.error("%s failed", task.get_name(), exc_info=task.exception())
