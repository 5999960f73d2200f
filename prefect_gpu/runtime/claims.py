"""Who manages what on this machine: locks that vanish with the process that holds them, ``kill -9`` included."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from prefect_gpu.scheduling.cluster import Device


class Claims:
    """Advisory file locks (``flock``), held until :meth:`release` or until the process is gone.

    GPUs are locked for the whole machine, whichever pool or user the workers serve; virtual devices, which exist
    only within one state folder, are locked there.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._held: dict[Path, int] = {}

    def claim_pool(self, pool: str) -> bool:
        """Become the only worker of a pool in this state folder; False if another process is."""
        return self._lock(self._state_dir / "workers" / f"{_safe(pool)}.lock")

    def claim_devices(self, devices: Iterable[Device]) -> tuple[list[Device], list[Device]]:
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


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
