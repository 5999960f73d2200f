"""The lines in a folder's ``.env`` that let Prefect find a server there: added by one command, removed by another.

python-dotenv can set and unset a name, but would replace a line that the user has written for it, and not bring it
back.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

_BEGIN = "# >>> by prefect-gpu up; prefect-gpu down removes these lines"
_END = "# <<<"
_OURS = ("PREFECT_API_URL=", "PREFECT_INTEGRATIONS_GPU_STATE_DIR=")


def put(file: Path, settings: Mapping[str, str]) -> None:
    """Let ``prefect``, ``prefect-gpu`` and flows that are started in this folder have these settings. Others stay.

    Raises:
        OSError: The file cannot be read or written. Then it is as it was.
    """
    before = _without_ours(_read(file)) if file.exists() else ""
    gap = "" if not before or before.endswith("\n") else "\n"
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    _write(file, f"{before}{gap}{_BEGIN}\n{lines}{_END}\n")


def forget(file: Path) -> None:
    """Take those lines out again. A file that had nothing else is removed.

    Raises:
        OSError: The file cannot be read or written. Then it is as it was.
    """
    if not file.exists():
        return
    before = _read(file)
    kept = _without_ours(before)
    if kept == before:
        return
    if kept.strip():
        _write(file, kept)
    else:
        file.unlink()


def _without_ours(text: str) -> str:
    lines = text.splitlines(keepends=True)
    bare = [line.rstrip("\r\n") for line in lines]
    kept: list[str] = []
    at = 0
    while at < len(lines):
        if bare[at] != _BEGIN:
            kept.append(lines[at])
            at += 1
        elif _END in bare[at:]:
            at = bare.index(_END, at) + 1
        else:  # somebody has removed our last line: what stands below may be the user's
            at += 1
            while at < len(lines) and bare[at].startswith(_OURS):
                at += 1
    return "".join(kept)


def _read(file: Path) -> str:
    # Whatever its encoding and its ends of lines are, they stay.
    return file.read_bytes().decode(errors="surrogateescape")


def _write(file: Path, text: str) -> None:
    """The whole file or nothing: on a full disk, the user's lines must not be lost."""
    place = file.resolve()  # it may be a link
    there = place.exists()
    temporary = place.with_name(f"{place.name}.prefect-gpu")
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600 if there else 0o666)  # it may have passwords
        temporary.write_bytes(text.encode(errors="surrogateescape"))
        if there:
            shutil.copymode(place, temporary)
        temporary.replace(place)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
