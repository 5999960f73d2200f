"""How much of the processor a run gets beside others: the kernel's own shares, changed while it runs.

Two mechanisms exist, and which one counts is the machine's choice: the nice value of each process, and, where the
kernel groups processes by session (``sched_autogroup_enabled``), that of the session. A run has a session of its own,
so both are set. Whoever is not root may lower a nice value for good only, but move that of a session up and down.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_STEP = 1.25  # each nice level is worth a quarter
_LOWEST = 19
_AGAIN = (0.0, 0.11)  # the kernel takes one change in a tenth of a second from whoever is not root


def adjustable() -> bool:
    """Whether a priority that was lowered here can be raised again."""
    return _may_raise() or _grouped()


def niceness(weight: float) -> int:
    """The nice value of a share: 0 for 1, and 19 for a seventieth or less.

    Args:
        weight: Share of the processor, relative to that of others; above 0.
    """
    return min(_LOWEST, max(0, round(math.log(1.0 / max(weight, 1e-9), _STEP))))


def set_priority(session: int, pids: Iterable[int], weight: float) -> bool:
    """Give a run this share of the processor.

    Args:
        session: Pid of the run's session leader.
        pids: Its processes.
        weight: See :func:`niceness`.

    Returns:
        Whether it was done; False where it could not be undone, or not be done at all.
    """
    value, done = niceness(weight), False
    if _grouped():
        for pause in _AGAIN:
            time.sleep(pause)
            try:
                Path(f"/proc/{session}/autogroup").write_text(str(value))
                done = True
                break
            except BlockingIOError:
                continue
            except OSError:
                break
    if _may_raise():
        for pid in pids:
            for thread in _threads(pid):
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, thread, value)
                    done = True
    return done


def bind(pids: Iterable[int], cpus: Iterable[int]) -> bool:
    """Bind all threads of these processes to these cores. True if any of them could be."""
    wanted, done = list(cpus), False
    for pid in pids:
        for thread in _threads(pid):
            with suppress(OSError, ValueError):
                os.sched_setaffinity(thread, wanted)
                done = True
    return done


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """Processor time of these processes and of their children that have ended, seconds; None: there are none."""
    ticks: int | None = None
    for pid in pids:
        try:
            line = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue
        ticks = (ticks or 0) + sum(map(int, line[line.rindex(b")") + 2 :].split()[11:15]))
    return None if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except (OSError, ValueError):
        return []


def _grouped() -> bool:
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return False


def _may_raise() -> bool:
    return os.geteuid() == 0
