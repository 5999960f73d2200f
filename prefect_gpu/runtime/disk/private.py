"""What the worker writes is for its own user: folders 0700, files 0600."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

# What is ours in a state folder, which may hold other things too.
_FOLDERS = frozenset(
    (
        "bundles",
        "channels",
        "checkpoints",
        "devices",
        "engine",
        "events",
        "locks",
        "pages",
        "results",
        "runs",
        "slurm",
        "spool",
        "unfinished",
        "workers",
    )
)
_HISTORY = "history.db"
_OTHERS = 0o077


def close_to_others(state_dir: Path) -> int:
    """Make the state folder, and from now on whatever this process writes, readable by its user only.

    What an earlier version left open there is closed; what is not ours stays as it is.

    Returns:
        The umask before, for what this process starts and does not own: runs.
    """
    before = os.umask(_OTHERS)
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in state_dir.iterdir():
        if path.name in _FOLDERS or path.name.startswith(_HISTORY):
            with suppress(OSError):  # it is gone, or somebody else's
                found = path.lstat()
                if found.st_mode & _OTHERS and not stat.S_ISLNK(found.st_mode):
                    path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    return before
