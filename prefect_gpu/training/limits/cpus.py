"""Changing a running process's cores (CODA's cores policy): affinity at once, thread counts at the next report."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from typing import Any


def valid(cores: Any) -> list[int]:
    """The core numbers among what a frame carried; an empty list if it is no such list."""
    if not isinstance(cores, list):
        return []
    return sorted({core for core in cores if type(core) is int and core >= 0})


def bind(cores: Iterable[int]) -> None:
    """Bind every thread of this process to these cores. Quietly does nothing where that is impossible.

    Threads and processes started later inherit the binding of the thread that starts them.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    try:
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    except OSError:
        threads = [0]
    wanted = list(cores)
    for thread in threads:
        with contextlib.suppress(OSError, ValueError, OverflowError):  # a thread that ended, a core we do not have
            os.sched_setaffinity(thread, wanted)


def usable() -> int:
    """How many cores the calling thread may run on now."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_threads(count: int) -> None:
    """Tell the numeric libraries that are loaded already to use this many threads; call it in the training's thread.

    Nothing is imported for it but threadpoolctl, and that only where a library that it steers is loaded.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        with contextlib.suppress(Exception):
            torch.set_num_threads(count)
    if "numpy" in sys.modules or "sklearn" in sys.modules:
        with contextlib.suppress(Exception):
            import threadpoolctl

            threadpoolctl.threadpool_limits(count)
