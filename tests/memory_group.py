"""A control group of this machine's kernel with a limit of main memory, as a service or an allocation has one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers.supervisor import descendants

_GROUPS = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Its folder; processes join it by :func:`join`. The test is skipped where none can be made."""
    old = (_GROUPS / "memory" / "memory.limit_in_bytes").exists()
    group = (_GROUPS / "memory" if old else _GROUPS) / f"prefect-gpu-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here (root can): {error}")
    try:
        limit = group / ("memory.limit_in_bytes" if old else "memory.max")
        if not limit.exists():
            pytest.skip(f"the control groups in {_GROUPS} do not limit memory")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        _leave(group)


def join(group: Path, pids: Iterable[int]) -> None:
    """Let processes, and those that they will start, have no more memory than the group has."""
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))


def join_with_all(group: Path, pid: int) -> None:
    """Likewise a process and all that it has started, also what it starts before it is in the group itself."""
    joined: set[int] = set()
    while left := {pid, *(process.pid for process in descendants(pid))} - joined:
        for one in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                join(group, [one])
        joined |= left


def _leave(group: Path) -> None:
    """Remove the group; whoever is still in it goes back."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            join(group.parent, (int(pid) for pid in (group / "cgroup.procs").read_text().split()))
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)
