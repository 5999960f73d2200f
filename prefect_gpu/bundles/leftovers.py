"""Bundles of runs that may be over, and the files that travelled beside them."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.leftovers import DAY_S, Leftover, is_run_id

_FILES = re.compile(r"^files/[0-9a-f]+\.zip$")


def bundles_left(folder: Path, days: float) -> Iterator[Leftover]:
    """The bundles in a folder. Files that several share go with the last of them; those of none, after so many days."""
    bundles = {path: _read(path) for path in _bundles(folder)}
    beside = {path: _beside(folder, bundle) for path, bundle in bundles.items()}
    users = Counter(beside.values())

    def remove(path: Path) -> None:
        path.unlink(missing_ok=True)
        files = beside[path]
        users[files] -= 1
        if files is None or users[files]:
            return
        # A submission writes its bundle first, and then the files beside it. Both may be new by now.
        if not any(_beside(folder, _read(one)) == files for one in _bundles(folder) if one not in bundles):
            files.unlink(missing_ok=True)

    for path, bundle in bundles.items():
        run = bundle.get("flow_run") or {}
        changed_at = _changed_at(path)
        if is_run_id(str(run.get("id"))) and changed_at is not None:
            yield Leftover(run["id"], str(run.get("work_pool_id") or ""), changed_at, partial(remove, path))
    since = time.time() - days * DAY_S
    for path in (*folder.glob("files/*.zip"), *folder.glob("**/.partial-*")):  # of uploads that were killed, too
        changed_at = _changed_at(path)
        if path not in users and changed_at is not None and changed_at < since:
            path.unlink(missing_ok=True)


def _bundles(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*-*") if is_run_id(path.name))


def _changed_at(path: Path) -> float | None:
    """Unix seconds; None: it is gone. An upload may be complete now, and workers of other pools clean up here, too."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime
    return None


def _beside(folder: Path, bundle: dict[str, Any]) -> Path | None:
    key = str(bundle.get("files_key") or "")
    return folder / key if _FILES.match(key) else None


def _read(path: Path) -> dict[str, Any]:
    """What is in a bundle; nothing if it is none."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_bytes())
        if isinstance(content, dict):
            return content
    return {}
