"""An empty, migrated database of Prefect's, kept for the next private server: migrations are half of its first start.

It lies in the user's cache folder as one file, named after Prefect's version and the newest of its migrations. Nothing
depends on it: where it is missing, damaged or cannot be written, the server migrates a new database, as it always does.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

DATABASE = "prefect.db"  # what Prefect calls it in its home
_STALE_DAYS = 30.0  # since a server last began with it: another environment may have another Prefect
_MIGRATIONS = ("server", "database", "_migrations", "versions", "sqlite")
_REVISION = re.compile(r"^(revision|down_revision)\b[^=\n]*=(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"""["'](\w+)["']""")


class MigratedDatabase:
    """The kept database of the Prefect that is installed here.

    Args:
        cache: The folder where it is kept; the user's by default.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._folder = cache or _user_cache()
        self._head = newest_migration()
        name = f"prefect-{importlib.metadata.version('prefect')}-{self._head}.db"
        self.path = self._folder / name if self._folder is not None and self._head is not None else None

    @property
    def is_kept(self) -> bool:
        """Whether there is one."""
        return self.path is not None and self.path.exists()

    def put(self, home: Path) -> bool:
        """Let a new server begin with it.

        Args:
            home: The server's home, which has no database yet.

        Returns:
            Whether there is one now. One that is damaged is removed.
        """
        if self.path is None:
            return False
        try:
            shutil.copyfile(self.path, home / DATABASE)
        except OSError:  # there is none, or it cannot be read
            _remove(home.glob(f"{DATABASE}*"))
            return False
        if not self._is_sound(home / DATABASE):
            _remove((*home.glob(f"{DATABASE}*"), self.path))
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def keep(self, home: Path) -> None:
        """Keep the database of a server that has just made it and has nothing in it yet, and remove stale ones.

        Others may do the same at this moment: each writes a file of its own, and the last one to be renamed stays.
        """
        if self._folder is None or self.path is None:
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(prefix="making-", dir=self._folder) as making:
                made = Path(making) / DATABASE
                with (
                    contextlib.closing(sqlite3.connect(home / DATABASE)) as source,
                    contextlib.closing(sqlite3.connect(made)) as copy,
                ):
                    source.backup(copy)
                if self._is_sound(made):
                    made.replace(self.path)
            self._remove_stale()

    def _is_sound(self, path: Path) -> bool:
        """Whether all of it can be read, and it is as new as Prefect."""
        try:
            with contextlib.closing(sqlite3.connect(path)) as database:
                sound = database.execute("PRAGMA quick_check").fetchall() == [("ok",)]
                return sound and database.execute("SELECT version_num FROM alembic_version").fetchall() == [
                    (self._head,)
                ]
        except sqlite3.Error:
            return False

    def _remove_stale(self) -> None:
        assert self._folder is not None
        oldest = time.time() - _STALE_DAYS * 86400
        for path in self._folder.iterdir():
            if path.stat().st_mtime < oldest:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)  # of one that was killed as it made it
                else:
                    path.unlink(missing_ok=True)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def newest_migration() -> str | None:
    """The migration that a database has come to once Prefect has migrated it; None if that cannot be told.

    It is read from the files' text: to load them, as Prefect does, takes as long as to import Prefect.
    """
    spec = importlib.util.find_spec("prefect")
    if spec is None or not spec.submodule_search_locations:
        return None
    made: set[str] = set()
    built_upon: set[str] = set()
    try:
        for file in Path(spec.submodule_search_locations[0], *_MIGRATIONS).glob("*.py"):
            for name, value in _REVISION.findall(file.read_text(encoding="utf-8")):
                (made if name == "revision" else built_upon).update(_QUOTED.findall(value))
    except OSError:
        return None
    newest = made - built_upon
    return newest.pop() if len(newest) == 1 else None


def _user_cache() -> Path | None:
    """Where the XDG specification has what can be made again; None for a user without a home."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with contextlib.suppress(RuntimeError):
        return (named if named.is_absolute() else Path.home() / ".cache") / "prefect-gpu" / "databases"
    return None
