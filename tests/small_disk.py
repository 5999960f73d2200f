"""A file system of a test's own that can be filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_FILLER = "filler"
_PAGE = 4096  # which the smallest file takes


def missing() -> list[str]:
    """What this machine lacks for it."""
    if os.getuid() != 0:
        return ["root's rights, to mount it"]
    return [] if shutil.which("mount") else ["the program mount"]


class SmallDisk:
    """A folder on a file system of its own.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, *, but_pages: int = 0) -> None:
        """Leave no byte of it, or room for some small files."""
        with contextlib.suppress(OSError), (self.folder / _FILLER).open("ab", buffering=0) as file:
            for block in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * block)
        os.truncate(self.folder / _FILLER, (self.folder / _FILLER).stat().st_size - but_pages * _PAGE)

    def make_room(self) -> None:
        """Undo that."""
        (self.folder / _FILLER).unlink(missing_ok=True)


@contextlib.contextmanager
def mounted(folder: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """A disk of this size in a folder, which is made."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
