"""Who manages what on this machine: locks that vanish with the process that holds them, ``kill -9`` included."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.scheduling.model.cluster import Device


class Locks:
    """Advisory file locks (``flock``), held until :meth:`release` or until the process is gone.

    GPUs are locked for the whole machine, whichever pool or user the workers serve; virtual devices, which exist
    only within one state folder, are locked there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._held: dict[Path, int] = {}

    def lock_pool(self, pool: str) -> bool:
        """Become the only worker of a pool in this state folder; False if another process is."""
        path = self._pool_path(pool)
        if not self._lock(path):
            return False
        with contextlib.suppress(OSError):  # another user's file, or a full disk: then we are not known
            os.ftruncate(self._held[path], 0)
            os.pwrite(self._held[path], json.dumps(_described(os.getpid())).encode(), 0)
        return True

    def beat(self, pool: str) -> None:
        """Show who stands by for the pool that its worker, which we are, is alive."""
        with contextlib.suppress(OSError):
            os.utime(self._pool_path(pool))

    def last_beat(self, pool: str) -> int | None:
        """When the pool's worker last showed that it is alive, as a number that grows; None: it is not known."""
        with contextlib.suppress(OSError):
            return self._pool_path(pool).stat().st_mtime_ns
        return None

    def kill_holder(self, pool: str) -> int | None:
        """End the process that is the pool's worker, for it is frozen: what it holds is free as soon as it is gone.

        Only a process of this machine (and of our part of it, if that is divided into containers) is ended, and only if
        it is certain that it is the one which made the claim.

        Returns:
            Its pid; None if it was not ended.
        """
        try:
            noted = json.loads(self._pool_path(pool).read_text())
            pid = int(noted["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if pid == os.getpid() or noted != _described(pid) or not supervisor.alive(pid, noted["start_ticks"]):
            return None
        return pid if supervisor.send(pid, noted["start_ticks"], signal.SIGKILL) else None

    def lock_devices(self, devices: Iterable[Device]) -> tuple[list[Device], list[Device]]:
        """Lock devices.

        Returns:
            (ours, those that another worker on this machine manages).
        """
        ours: list[Device] = []
        others: list[Device] = []
        for device in devices:
            (ours if self._lock(self._device_path(device)) else others).append(device)
        return ours, others

    def release(self) -> None:
        """Give up every lock."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()

    def _pool_path(self, pool: str) -> Path:
        return self._state_dir / "workers" / f"{_safe(pool)}.lock"

    def _device_path(self, device: Device) -> Path:
        if device.virtual:
            return self._state_dir / "devices" / f"{_safe(device.id)}.lock"
        folder = Path(tempfile.gettempdir()) / "prefect-gpu-devices"
        if not folder.exists():
            folder.mkdir(mode=0o1777, exist_ok=True)
            folder.chmod(0o1777)  # other users' workers take part, whatever our umask is
        return folder / f"{_safe(device.id)}.lock"

    def _lock(self, path: Path) -> bool:
        if path in self._held:
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError:
            # Another user's file in the folder that all users share: it may be read, and that is enough for a lock.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(PermissionError):
                os.fchmod(descriptor, 0o666)  # whatever our umask is
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._held[path] = descriptor
        return True


def _described(pid: int) -> dict[str, str | int]:
    """What no two processes have alike: pids are used again, and each container has its own."""
    seen = supervisor.look(pid)
    return {
        "pid": pid,
        "start_ticks": seen.start_ticks if seen is not None else 0,
        "boot": supervisor.boot_id(),
        "namespace": os.readlink("/proc/self/ns/pid"),
    }


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
