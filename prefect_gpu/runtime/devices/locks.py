"""Who manages what on this machine: locks that vanish with the process that holds them, ``kill -9`` included.

Lock files lie where no other user can put anything, so that nobody can stop a worker by a lock, or have a file of his
choice opened by it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import re
import signal
import stat
from collections.abc import Iterable
from pathlib import Path

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.scheduling.model.cluster import Device

MACHINE = Path("/run/lock/prefect-gpu")
_TRIES = 100


class LockError(ValueError):
    """A lock cannot be kept safely. The message names the file or folder and the remedy."""


class Locks:
    """Advisory file locks (``flock``), held until :meth:`release` or until the process is gone.

    GPUs are locked for the whole machine, whichever pool the workers serve; virtual devices, which exist only within
    one state folder, are locked there.

    Args:
        state_dir: The state folder.
        machine: Where GPUs are locked; None: see :func:`machine_folder`.

    Raises:
        LockError: By all methods that lock: a file or folder is not ours alone.
    """

    def __init__(self, state_dir: Path, machine: Path | None = None) -> None:
        self._state_dir = state_dir
        self._machine = machine
        self._held: dict[Path, int] = {}

    def lock_pool(self, pool: str) -> bool:
        """Become the only worker of a pool in this state folder; False if another process is."""
        path = self._pool_path(pool)
        if not self._lock(path):
            return False
        with contextlib.suppress(OSError):  # a full disk: then we are not known
            os.ftruncate(self._held[path], 0)
            os.pwrite(self._held[path], json.dumps(_described(os.getpid())).encode(), 0)
        return True

    def beat(self, pool: str) -> None:
        """Show who stands by for the pool that its worker, which we are, is alive."""
        with contextlib.suppress(OSError, KeyError):
            os.utime(self._held[self._pool_path(pool)])

    def last_beat(self, pool: str) -> int | None:
        """When the pool's worker last showed that it is alive, as a number that grows; None: it is not known."""
        with contextlib.suppress(OSError):
            return self._pool_path(pool).lstat().st_mtime_ns
        return None

    def kill_holder(self, pool: str) -> int | None:
        """End the process that is the pool's worker, for it is frozen: what it holds is free as soon as it is gone.

        Only a process of our own user on this machine (and in our part of it, if that is divided into containers) is
        ended, and only if the kernel says that it holds the lock: what is written in the file does not suffice.

        Returns:
            Its pid; None if it was not ended.
        """
        try:
            descriptor = os.open(self._pool_path(pool), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            noted = json.loads(os.read(descriptor, 4096))
            pid = int(noted["pid"])
            if pid == os.getpid() or noted != _described(pid) or not supervisor.alive(pid, noted["start_ticks"]):
                return None
            if not _holds(pid, os.fstat(descriptor)):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        finally:
            os.close(descriptor)
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
        if self._machine is None:
            self._machine = machine_folder()
        return self._machine / f"{_safe(device.id)}.lock"

    def _lock(self, path: Path) -> bool:
        if path in self._held:
            return True
        owners = {os.geteuid(), 0}
        if path.is_relative_to(self._state_dir) and self._state_dir.exists():
            owners.add(self._state_dir.stat().st_uid)  # root may serve with another user's state folder
        setting = "STATE_DIR" if path.is_relative_to(self._state_dir) else "LOCK_DIR"
        aside = f"name another folder in PREFECT_INTEGRATIONS_GPU_{setting}"
        folder = _trusted(path.parent, owners, aside)
        descriptor = _open(path, stat.S_IMODE(folder.st_mode) & 0o060, aside)
        try:
            found = os.fstat(descriptor)
            # Whoever belongs to the group of a folder that several users share has locks of his own there.
            trusted = found.st_uid in owners or folder.st_mode & stat.S_IWGRP
            if not (stat.S_ISREG(found.st_mode) and trusted):
                raise LockError(f"The lock {path} is {_whose(found)}, not a file of this user. Remove it, or {aside}.")
            if found.st_uid == os.geteuid():
                os.fchmod(descriptor, 0o600 | stat.S_IMODE(folder.st_mode) & 0o060)  # earlier versions made them 0666
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise LockError(f"{path} cannot be locked: {error.strerror}. {_remedy(error)}, or {aside}.") from error
        except LockError:
            os.close(descriptor)
            raise
        self._held[path] = descriptor
        return True


def machine_folder(machine: Path = MACHINE) -> Path:
    """Where this user's workers lock GPUs.

    That is ``/run/lock/prefect-gpu`` for root, and for everybody for whom root has made it writable, as for a group;
    else a folder in the user's home, where workers of other users do not look. The user's folder in ``/run/user`` would
    not do: it is removed when he logs out, and his worker goes on.

    Args:
        machine: That of the machine.
    """
    if os.geteuid() == 0:
        _take(machine)
        return machine
    with contextlib.suppress(OSError):
        found = machine.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and os.access(machine, os.W_OK | os.X_OK):
            return machine
    try:
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir)  # the same whatever a shell or a service sets
    except KeyError:
        home = Path.home()
    return home / ".local" / "state" / "prefect-gpu" / "locks"


def _take(folder: Path) -> None:
    """As root: have this folder, whoever was quicker in ``/run/lock``, where everybody may make one."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == 0:
                return
            folder.rename(folder.with_name(f"{folder.name}.of-{found.st_uid}-{found.st_ino}"))
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True)


def _remedy(error: OSError) -> str:
    if error.errno in supervisor.NO_ROOM:
        return "Make room there"
    if isinstance(error, PermissionError):
        return "Start the worker as its owner"
    return "Mount it so that it can be written" if error.errno == errno.EROFS else "Remove it"


def _trusted(folder: Path, owners: set[int], aside: str) -> os.stat_result:
    """A folder for lock files, made if need be, in which nobody but those whom we trust can put anything.

    Args:
        owners: The users to whom it may belong.
        aside: Where else it may be, for the message.

    Raises:
        LockError: Others can.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and found.st_mode & 0o002:
            folder.chmod(stat.S_IMODE(found.st_mode) & ~0o002)  # made by an earlier version, without a umask
            found = folder.lstat()
    except OSError as error:
        raise LockError(
            f"The folder {folder} for locks cannot be made: {error.strerror}. {_remedy(error)}, or {aside}."
        ) from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners or mode & 0o002:
        raise LockError(
            f"The folder {folder} for locks is {_whose(found)} with mode {mode:04o}: it must belong to this user or "
            f"to root, and not everybody may write to it. Remove it, or {aside}."
        )
    return found


def _open(path: Path, for_group: int, aside: str) -> int:
    """Open a lock file for writing, or, where only that is allowed, for reading, which is enough for a lock."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    refused: OSError | None = None
    for way in (os.O_RDWR | os.O_CREAT, os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, way | flags, 0o600 | for_group)
        except PermissionError as error:  # another user's file in a folder that several share
            refused = refused or error
        except OSError as error:  # a symbolic link, a folder, a full disk; or it may not be made, and so is not there
            refused = refused or error
            break
    assert refused is not None
    raise LockError(
        f"The lock {path} cannot be opened: {refused.strerror}. {_remedy(refused)}, or {aside}."
    ) from refused


def _holds(pid: int, file: os.stat_result) -> bool:
    """Whether a process of our user holds the lock of this file, as the kernel tells it."""
    own = Path(f"/proc/{pid}")
    if own.stat().st_uid != os.geteuid():
        return False
    for entry in (own / "fd").iterdir():
        with contextlib.suppress(OSError):
            held = entry.stat()
            if (held.st_dev, held.st_ino) == (file.st_dev, file.st_ino):
                told = (own / "fdinfo" / entry.name).read_text()
                if any(line.startswith("lock:") and "WRITE" in line for line in told.splitlines()):
                    return True
    return False


def _whose(found: os.stat_result) -> str:
    kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a file" if stat.S_ISREG(found.st_mode) else "something else"
    return f"{kind} of the user with id {found.st_uid}"


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
