"""Which cores of its machine an agent's runs are bound to, where Slurm has bound the agent to none.

Many clusters keep jobs to their cores (``TaskPlugin=task/cgroup`` or ``task/affinity``); others only count them. There,
several agents of one machine would all take the first ones, and their runs would share a core beside idle ones. So each
core is taken by a lock, which the kernel gives back when the agent ends, however it does.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

_held: list[int] = []  # as long as this process lives


def own_cores(cpus: Sequence[int], granted: int, folder: Path | None = None) -> tuple[int, ...]:
    """The cores for an agent's runs: those that it is bound to, or as many that the fewest other agents have.

    Args:
        cpus: Cores that this process may run on.
        granted: How many Slurm has given the allocation on this node.
        folder: Where this user's agents of this machine lock cores; None: in the machine's temporary folder.
    """
    if granted >= len(cpus):
        return tuple(cpus)
    folder = folder or Path(tempfile.gettempdir()) / f"prefect-gpu-cores-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            return tuple(cpus[:granted])
        return tuple(sorted(_take(cpus, granted, folder)))
    except OSError:  # without locks, as good as can be
        return tuple(cpus[:granted])


def _take(cpus: Sequence[int], granted: int, folder: Path) -> list[int]:
    taken: list[int] = []
    turn = 0
    while True:
        for core in cpus:
            if core not in taken and _lock(folder / f"{core}.{turn}"):
                taken.append(core)
                if len(taken) == granted:
                    return taken
        turn += 1


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True
