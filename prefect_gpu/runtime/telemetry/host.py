"""Cores and memory that this process may really use, which in a container is less than the machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

_ROOT = Path("/")


def usable_cpus() -> tuple[int, ...]:
    """The core numbers that this process may run on, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def usable_memory_bytes(root: Path = _ROOT) -> int:
    """Memory of the machine, or the tightest cgroup limit (v1 or v2) above this process if that is less.

    Args:
        root: Where ``proc`` and ``sys`` lie; tests put a made-up tree here.
    """
    total = psutil.virtual_memory().total
    return min([total, *_memory_limits(root)])


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores' worth of CPU time that a cgroup quota allows (``docker run --cpus``), or None without a quota."""
    return min(_cpu_quotas(root), default=None)


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _cgroup_folders(root, "memory"):
        # v2 writes "max" for no limit; v1 a number near 2**63, which min() with the real total takes care of.
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name)
            if text.isdigit():
                yield int(text)


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _cgroup_folders(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # v2: "200000 100000" or "max 100000"
        if not quota:  # v1: two files, and -1 for no quota
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's cgroup and of all its ancestors: a limit on any of them binds.

    Inside a container the path in ``/proc/self/cgroup`` may be the host's and not exist here; then its missing
    folders are read as empty, and the mount's own root, which is the container's cgroup, still counts.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            # cpu and cpuacct often share one mount, under either name.
            mounts = [root / "sys/fs/cgroup" / name for name in (controllers, controller)]
            mount = next((candidate for candidate in mounts if candidate.is_dir()), mounts[-1])
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield mount.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
