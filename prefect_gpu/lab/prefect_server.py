"""``prefect``, for a server on SQLite: ``python -m prefect_gpu.lab.prefect_server server start ...``.

Before Python 3.12, such a server stands still for a minute at times, and what it was asked to write fails with
"database is locked". A statement that finds the database locked leaves a cursor behind that still has hold of it. The
collector of garbage finds that cursor while the event loop runs, and letting go of the statement takes SQLite's mutex
of the connection. A thread that waits on that connection for the lock of the database has the mutex, for the 60 seconds
that Prefect sets; and who has the lock of the database waits for the event loop.

So garbage is collected by a thread of its own here, which may wait.
"""

from __future__ import annotations

import gc
import runpy
import sys
import time
from itertools import count
from threading import Thread

_BLOCKS = sys.version_info < (3, 12)
_PAUSE_S = 1.0
_ALL_EVERY = 60  # pauses: what has lived for long is looked at rarely, as it takes long


def main() -> None:
    """Become Prefect's command."""
    if _BLOCKS:
        collect_beside()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)


def collect_beside(pause_s: float = _PAUSE_S) -> None:
    """Collect this process's garbage in a thread of its own from now on, and in no other."""
    gc.disable()
    Thread(target=_collect, args=(pause_s,), name="garbage", daemon=True).start()


def _collect(pause_s: float) -> None:
    for number in count(1):
        time.sleep(pause_s)
        gc.collect(1 if number % _ALL_EVERY else 2)


if __name__ == "__main__":
    main()
