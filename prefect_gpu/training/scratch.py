"""Folders for temporary files that do not outlive the process that made them for long, even if it is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

_LOCK = "lock"


class Scratch:
    """A folder for this process, in the folder for temporary files. It is removed with the object.

    A forked child has a copy of the object, and removes nothing: the folder is its parent's.

    A process that is killed removes nothing, and what is in it may be large: what such processes have left is removed
    when the next folder is made. Whose folder it is, a lock in it says, which ends with its process.

    Args:
        prefix: What the names of all such folders begin with.

    Example:
        >>> scratch = Scratch("prefect-gpu-checkpoint-")
        >>> (scratch.empty() / "weights").write_text("3.14")
        4
    """

    def __init__(self, prefix: str) -> None:
        _remove_abandoned(prefix)
        self._folder = Path(tempfile.mkdtemp(prefix=prefix))
        weakref.finalize(self, _remove, self._folder, os.getpid())
        # Made under another name: one without a lock on it may be removed by anybody.
        making = self._folder / "making"
        self._lock = making.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        making.rename(making.with_name(_LOCK))

    def empty(self) -> Path:
        """An empty folder; the one before it is removed."""
        folder = self._folder / "files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:  # it is being made or removed, or is another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # whose it is lives
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
