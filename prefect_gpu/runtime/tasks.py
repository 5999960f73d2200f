"""Work that goes on beside whoever began it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


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


class Tasks:
    """Holds on to tasks until they are done, and says what went wrong in them."""

    def __init__(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._logger = logger
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Begin it; the name is for the log."""
        task = asyncio.get_running_loop().create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

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
