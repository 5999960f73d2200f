"""The lines in a folder's ``.env`` that let Prefect find a server there: added by one command, removed by another.

python-dotenv can set and unset a name, but would replace a line that the user has written for it, and not bring it
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_BEGIN = "# >>> by prefect-gpu up; prefect-gpu down removes these lines"
_END = "# <<<"


def put(file: Path, settings: Mapping[str, str]) -> None:
    """Let ``prefect``, ``prefect-gpu`` and flows that are started in this folder have these settings. Others stay."""
    forget(file)
    before = file.read_text() if file.exists() else ""
    gap = "" if not before or before.endswith("\n") else "\n"
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    file.write_text(f"{before}{gap}{_BEGIN}\n{lines}{_END}\n")


def forget(file: Path) -> None:
    """Take those lines out again. A file that had nothing else is removed."""
    if not file.exists():
        return
    kept: list[str] = []
    ours = found = False
    for line in file.read_text().splitlines(keepends=True):
        if line.rstrip("\n") == _BEGIN:
            ours = found = True
        if not ours:
            kept.append(line)
        if line.rstrip("\n") == _END:
            ours = False
    if not found:
        return
    if "".join(kept).strip():
        file.write_text("".join(kept))
    else:
        file.unlink()
