"""Private Prefect servers for the tests, whose database is made once: its migrations are half of a server's start."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from prefect_gpu.sandbox import Sandbox

DATABASE, MEMO = "prefect.db", "memo_store.toml"  # the memo says which block types the database has


@contextlib.contextmanager
def prefect_server(
    folders: pytest.TempPathFactory, host: str = "127.0.0.1", settings: Mapping[str, str] | None = None
) -> Iterator[Sandbox]:
    """A server on SQLite, with nothing in it.

    Args:
        host, settings: See :class:`~prefect_gpu.sandbox.Sandbox`.
    """
    base = folders.getbasetemp()
    kept = (base.parent if base.name.startswith("popen-gw") else base) / "prefect-database"  # one for all
    folder = folders.mktemp("sandbox")
    if kept.exists():
        shutil.copytree(kept, folder / "home")
    with Sandbox(folder, settings, host) as sandbox:
        if not kept.exists():
            _keep(sandbox.home, kept)
        yield sandbox


def _keep(home: Path, kept: Path) -> None:
    """Copy what a server has made as it started; another process may do the same at this moment."""
    making = kept.with_name(f"{kept.name}-{os.getpid()}")
    making.mkdir()
    with (
        contextlib.closing(sqlite3.connect(home / DATABASE)) as source,
        contextlib.closing(sqlite3.connect(making / DATABASE)) as copy,
    ):
        source.backup(copy)
    shutil.copy(home / MEMO, making / MEMO)
    with contextlib.suppress(OSError):  # the other one was first
        making.rename(kept)
