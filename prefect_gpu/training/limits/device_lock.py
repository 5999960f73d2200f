"""The devices of this process, locked while it trains: what the books say must not happen, the kernel prevents.

A lock belongs to the process and its children, and the kernel takes it back when they end, however that happens. So a
run that was prepared behind another one can tell whether the device is free even if no worker is there to ask.

Whoever has a device alone writes into its file which launch it is of. A launch may train in several processes that it
has started itself, such as those of ``torch.multiprocessing.spawn``: they would wait for one another for ever.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from prefect_gpu.training.protocol import ENV_LOCKS, ENV_SHARED, ENV_TOKEN

logger = logging.getLogger("prefect_gpu.training")

_LOOK_AGAIN_SECONDS = 0.02  # only while somebody else trains although our gate is open
_SAY_SECONDS = 30.0


class DeviceLock:
    """The locks of the devices that this run was given.

    Args:
        files: One lock file for each device; empty for a run without devices, or outside the pool.
        shared: Whether runs that share, too, may train on them at the same time.
        launch: What all processes of this launch of the run have in common, and no other; empty: nothing is known.

    Example:
        >>> lock = DeviceLock([])
        >>> lock.acquire()
        >>> lock.release()
    """

    def __init__(self, files: list[str], shared: bool = False, launch: str = "") -> None:
        self._files = sorted(set(files))  # always in one order
        self.shared = shared
        self._launch = launch.encode()
        self._held: list[int] = []
        self._alone = False

    @property
    def held(self) -> bool:
        """Whether the devices are ours."""
        return bool(self._held)

    def try_acquire(self) -> bool:
        """Lock all devices, or none of them, without waiting. True if they are ours, or cannot be locked at all.

        They are ours, too, where another process of this launch has them.
        """
        if self._held and (self.shared or self._alone):
            return True
        self.release()
        taken: list[int] = []
        for file in self._files:
            try:
                taken.append(_open(file))
                fcntl.flock(taken[-1], (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except BlockingIOError:
                ours = bool(self._launch) and _written(taken[-1]) == self._launch
                _close(taken)
                return ours
            except OSError as error:  # a file system without locks, or a full one: the worker's books must do
                logger.debug("%s cannot be locked: %s", file, error)
                _close(taken)
                return True
        self._held, self._alone = taken, not self.shared
        for descriptor in taken:
            _write(descriptor, b"" if self.shared else self._launch)
        return True

    def acquire(self) -> None:
        """Wait until the devices are ours, or cannot be locked at all."""
        waited = 0.0
        while not self.try_acquire():
            if waited % _SAY_SECONDS < _LOOK_AGAIN_SECONDS:
                logger.warning("Another run still trains on this run's device: waiting until it is free.")
            waited += _LOOK_AGAIN_SECONDS
            time.sleep(_LOOK_AGAIN_SECONDS)

    def release(self) -> None:
        """Others may train."""
        for descriptor in self._held:
            if self._alone:
                _write(descriptor, b"")
            with suppress(OSError):  # children that hold a copy do not keep it: it is unlocked, not only closed
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        _close(self._held)
        self._held, self._alone = [], False


def own_lock(environ: Mapping[str, str]) -> DeviceLock:
    """The lock of this process's devices, as its environment names them."""
    try:
        files = json.loads(environ.get(ENV_LOCKS) or "[]")
    except ValueError:
        files = []
    token = environ.get(ENV_TOKEN, "")  # which nobody else may know
    launch = hashlib.sha256(token.encode()).hexdigest() if token else ""
    return DeviceLock([file for file in files if isinstance(file, str)], environ.get(ENV_SHARED) == "1", launch)


def _open(file: str) -> int:
    """A lock file: made if need be, and only read where another user, of another container, has made it."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except PermissionError:
        return os.open(file, os.O_RDONLY | flags)


def _write(descriptor: int, launch: bytes) -> None:
    with suppress(OSError):  # it is another user's, or the disk is full: then nobody knows
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, launch, 0)


def _written(descriptor: int) -> bytes:
    with suppress(OSError):
        return os.pread(descriptor, 256, 0)
    return b""


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
