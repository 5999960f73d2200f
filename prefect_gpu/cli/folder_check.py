"""Whether a worker could write into a folder."""

from __future__ import annotations

import os
from pathlib import Path
from shlex import quote

from prefect_gpu.runtime.telemetry import Finding
from prefect_gpu.units import format_bytes

_NOTHING = 1 << 20  # bytes; a run's records take some of them
_LITTLE = 1 << 30


def check_folder(folder: Path, subject: str, elsewhere: str) -> list[Finding]:
    """Whether this user could write there. Nothing is created.

    Args:
        elsewhere: The command that names another folder.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if is_there(path))
    if not existing.is_dir():
        return [
            Finding(
                "error",
                subject,
                f"{folder} cannot be used: {existing} is a file.",
                f"Move it away (`mv {quote(str(existing))} {quote(f'{existing}.old')}`), or take another folder: "
                f"`{elsewhere}`.",
            )
        ]
    disk = os.statvfs(existing)
    if disk.f_flag & os.ST_RDONLY:
        return [
            Finding(
                "error",
                subject,
                f"{folder} cannot be used: its file system is mounted read-only.",
                f"Mount it so that it can be written, or take another folder: `{elsewhere}`.",
            )
        ]
    if not os.access(existing, os.W_OK | os.X_OK):
        return [
            Finding(
                "error",
                subject,
                f"{folder} cannot be used: this user may not write {existing}.",
                f"Let this user write there, or take another folder: `{elsewhere}`.",
            )
        ]
    free = disk.f_bavail * disk.f_frsize
    if free < _LITTLE or (disk.f_files and not disk.f_favail):
        full = free < _NOTHING or free >= _LITTLE  # or there is no room for another file's name
        words = "is full. No run starts" if full else f"has {format_bytes(free)} left. Once it is full, no run starts"
        return [
            Finding(
                "error" if full else "warning",
                subject,
                f"{folder}: its disk {words}, and none can save.",
                f"Make room there, or take another folder: `{elsewhere}`.",
            )
        ]
    created = "" if existing == folder else " (created when a worker starts)"
    return [Finding("ok", subject, f"{folder}{created}")]


def is_there(path: Path) -> bool:
    """Whether this user sees that something is there."""
    return os.path.exists(path)  # False, and no error, below a folder that this user may not look into
