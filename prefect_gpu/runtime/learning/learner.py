"""Learns from the history in the background: one thread of low priority, one core, the newest runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from prefect_gpu.estimation.runs import FinishedRun
from prefect_gpu.runtime.tasks import in_own_thread

if TYPE_CHECKING:
    from prefect_gpu.estimation.estimator import Estimator

MOST_ROWS = 100_000  # of the history, the newest; what is older says little of today's programs
MOST_OF_EACH_FLOW = 400  # and of these the newest of each flow: more than are learned from, since some will have failed
_SETTLE_S = 1.0  # runs that end together are learned from together
_REST = 10.0  # times as long as learning took: it uses a tenth of one core at most
_NICE = 10


class Learner:
    """Learns again after runs have finished.

    Args:
        read: Reads the finished runs; called in the thread that learns.
        learned: Awaited with what was learned.
        logger: Where it says that the history could not be read.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[FinishedRun]],
        learned: Callable[[Estimator], Awaitable[None]],
        logger: logging.Logger,
    ) -> None:
        self._read, self._learned, self._logger = read, learned, logger
        self._news = asyncio.Event()
        self._news.set()  # what the history holds already
        self._estimator: Estimator | None = None

    def wake(self) -> None:
        """A run was recorded."""
        self._news.set()

    async def run(self) -> None:
        """Learn whenever there is something new, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_SETTLE_S)
            self._news.clear()
            began = time.monotonic()
            try:
                estimator = await in_own_thread(self._learn, "prefect-gpu-learner")
            except Exception as error:
                said = str(error).rstrip(".")
                self._logger.warning("Nothing was learned from the history: %s. Estimates stay as they were.", said)
            else:
                if estimator is not None:
                    self._estimator = estimator
                    await self._learned(estimator)
            await asyncio.sleep(_REST * (time.monotonic() - began))

    def _learn(self) -> Estimator | None:
        runs = self._read()
        if not runs:
            return None
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, as Linux does it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        from threadpoolctl import threadpool_limits

        from prefect_gpu.estimation.estimator import Estimator

        with threadpool_limits(1):
            return Estimator(runs, before=self._estimator)
