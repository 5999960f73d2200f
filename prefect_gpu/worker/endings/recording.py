"""The way of finished runs into the history, which may be down when the worker starts, and later, for any time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prefect_gpu.runtime.tasks import in_own_thread
from prefect_gpu.storage.engine import HistoryError, open_engine
from prefect_gpu.storage.history import History
from prefect_gpu.storage.spool import Row, Spool

_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0  # from one try to the next, while the history cannot be used
_LAST_TRY_S = 10.0  # when the worker stops


class Recorder:
    """Keeps rows in a spool on the disk, and writes them into the history as soon as that takes them.

    Args:
        url: The history's.
        folder: Of the spool.

    Attributes:
        trouble: Why the history cannot be written now; empty if it can.

    Raises:
        HistoryError: The URL is none of a history, or its driver is not installed.
    """

    def __init__(self, url: str, folder: Path, logger: logging.Logger) -> None:
        open_engine(url, read_only=True).dispose()
        self._url, self._logger = url, logger
        self._spool = Spool(folder)
        self._history: History | None = None
        self._was_down = False
        self.trouble = ""
        self._opening, self._writing = threading.Lock(), threading.Lock()
        self._wake: Callable[[], object] = lambda: None

    def keep(self, row: Row) -> None:
        """Keep a row: it is on the disk when this returns (called in a thread)."""
        self._spool.put(row)
        self._wake()

    def opened(self) -> History:
        """The history (called in a thread).

        Raises:
            HistoryError: It cannot be used now.
        """
        with self._opening:
            if self._history is None:
                try:
                    self._history = History(self._url)
                except HistoryError:
                    self._was_down = True
                    raise
            return self._history

    async def run(self, recorded: Callable[[], object] | None) -> None:
        """Write what waits, now and whenever there is more, until cancelled.

        Args:
            recorded: Called when the history has got rows, and when it can be used again.
        """
        self._spool.take_up()
        news, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the worker has stopped meanwhile
                loop.call_soon_threadsafe(news.set)

        self._wake = wake
        pause_s = _PAUSE_S
        while True:
            news.clear()
            try:
                written = await in_own_thread(self._write, "prefect-gpu-history")
            except Exception as error:
                self._was_down = True
                if str(error) != self.trouble:
                    self.trouble = str(error)
                    self._logger.warning("%s Until then, what is to be kept waits in %s.", error, self._spool.folder)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self.trouble:
                self._logger.info("The history can be used again, and has got %d rows that waited", written)
            if written or self._was_down:
                self._was_down = False
                if recorded is not None:
                    recorded()
            pause_s, self.trouble = _PAUSE_S, ""
            await news.wait()

    async def close(self) -> None:
        """Write what still waits, if that can be done in a few seconds; the next worker writes the rest."""
        if len(self._spool):
            with suppress(HistoryError, asyncio.TimeoutError):
                await asyncio.wait_for(in_own_thread(self._write, "prefect-gpu-history"), _LAST_TRY_S)
        if self._history is not None:
            self._history.close()

    def _write(self) -> int:
        with self._writing:
            return self._spool.write_to(self.opened())
