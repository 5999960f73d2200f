"""Imported by every Python that has this folder in its path: notes each time that an event loop stands still.

``STORM_STANDSTILLS`` names the file. A line has when the callback began (monotonic seconds), for how many seconds it
kept the loop, how many of those this thread computed, and how many it only waited for a core that others had (Linux's
schedstat); and where it was after a while. What happens before the worker's class is imported, by which
``prefect worker start`` keeps the loop for a second, is not the worker's and is left out.
"""

import asyncio.events
import json
import os
import sys
import threading
import time
import traceback
from typing import Any

_LEAST_S = 0.3
_FRAMES = 6
_FILE = os.environ.get("STORM_STANDSTILLS")


class _Watch:
    """Times the callbacks of this thread's loop, and looks from another thread at the ones that take long."""

    def __init__(self, file: str) -> None:
        self._file, self._thread = file, threading.get_ident()
        self._begun = 0.0
        try:
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._schedstat = -1  # a kernel without it
        self._where: list[str] = []
        self._run: Any = asyncio.events.Handle._run
        asyncio.events.Handle._run = lambda handle: self._timed(handle)  # type: ignore[assignment,method-assign]
        threading.Thread(target=self._look, daemon=True).start()

    def _timed(self, handle: asyncio.events.Handle) -> None:
        another = threading.get_ident() != self._thread  # of a thread that may take its time
        if another or not hasattr(sys.modules.get("prefect_gpu.worker.worker"), "GpuWorker"):
            self._run(handle)
            return
        self._begun, computed, waited = time.monotonic(), time.thread_time(), self._waited_s()
        self._run(handle)
        begun, self._begun = self._begun, 0.0
        if (took := time.monotonic() - begun) >= _LEAST_S:
            computed = time.thread_time() - computed
            line = {
                "at": begun,
                "took_s": took,
                "computed_s": computed,
                "waited_s": self._waited_s() - waited,
                "where": self._where,
            }
            with open(self._file, "a") as file:
                file.write(json.dumps(line) + "\n")

    def _waited_s(self) -> float:
        """For how long this thread has been ready to run, and no core was free."""
        return int(os.pread(self._schedstat, 100, 0).split()[1]) / 1e9 if self._schedstat >= 0 else 0.0

    def _look(self) -> None:
        while True:
            time.sleep(_LEAST_S / 2)
            begun = self._begun
            if begun and time.monotonic() - begun > _LEAST_S / 2:
                stack = traceback.extract_stack(sys._current_frames()[self._thread])[-_FRAMES:]
                self._where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack]


if _FILE and "worker" in sys.orig_argv:
    _Watch(_FILE)
