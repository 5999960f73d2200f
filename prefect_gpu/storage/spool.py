"""Rows wait on this machine's disk until the history has taken them: it may be down, full, or slow."""

from __future__ import annotations

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from prefect_gpu.storage.history import History, RowRefused
from prefect_gpu.storage.row import ContentionRow, HistoryRow, StayRow

Row = HistoryRow | ContentionRow | StayRow

_KINDS: dict[str, type[HistoryRow] | type[ContentionRow] | type[StayRow]] = {
    "run": HistoryRow,
    "contention": ContentionRow,
    "stay": StayRow,
}
REFUSED = ".refused"
"""How the names of files end that no history has taken."""

logger = logging.getLogger("prefect_gpu.history")


def spool_folder(state_dir: Path) -> Path:
    """Where the spools of all pools of a state folder are, each under its pool's name."""
    return state_dir / "spool"


class Spool:
    """A folder with one file for each row that waits. Several processes may fill and empty it.

    A file goes once the history has its row. Whoever is killed in between writes the row again after a restart, and
    the history knows it: each row gets there once. What the history refuses, and a file that cannot be read, is set
    aside under a name that ends in ``.refused``, and keeps no other row waiting.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._homeless: list[Row] = []  # rows that this disk had no room for

    def put(self, row: Row) -> None:
        """Keep a row. It outlives this process and a power loss; without room on the disk, only as long as it lives."""
        kind = next(name for name, one in _KINDS.items() if isinstance(row, one))
        text = json.dumps({"kind": kind, **row.as_columns()})
        path = self.folder / f"{time.time_ns():020}-{uuid4().hex[:8]}.json"
        making = path.with_suffix(".tmp")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            making.write_text(text, encoding="utf-8")
            _sync(making)
            making.rename(path)
            _sync(self.folder)
        except OSError as error:
            with suppress(OSError):
                making.unlink(missing_ok=True)
            self._homeless.append(row)
            logger.warning("A row for the history cannot be kept in %s and waits in memory: %s.", self.folder, error)

    def write_to(self, history: History) -> int:
        """Write into the history whatever waits, the oldest first.

        Returns:
            How many rows it has taken.

        Raises:
            HistoryError: It cannot be written; what it has not taken waits on.
        """
        written = 0
        for _ in range(len(self._homeless)):
            self.put(self._homeless.pop(0))
        for path in self.waiting():
            try:
                row = _read(path)
            except FileNotFoundError:  # another worker was faster
                continue
            except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
                self._set_aside(path, f"cannot be read: {error!r}")
                continue
            try:
                _write(history, row)
            except RowRefused as error:
                self._set_aside(path, f"is refused: {error}")
                continue
            path.unlink(missing_ok=True)
            written += 1
        while self._homeless:
            try:
                _write(history, self._homeless[0])
                written += 1
            except RowRefused as error:
                logger.error("A row for the history is refused and lost, as this disk is full: %s.", error)
            del self._homeless[0]
        return written

    def waiting(self) -> list[Path]:
        """The files of the rows that wait, the oldest first."""
        return sorted(self.folder.glob("*.json"))

    def take_up(self) -> None:
        """Let what was set aside wait again: this version may know what an earlier one did not."""
        for path in self.folder.glob(f"*{REFUSED}"):
            with suppress(OSError):
                path.rename(path.with_suffix(""))

    def __len__(self) -> int:
        return len(self.waiting()) + len(self._homeless)

    def _set_aside(self, path: Path, why: str) -> None:
        kept = path.with_name(path.name + REFUSED)
        with suppress(OSError):
            path.rename(kept)
        logger.error("A row for the history %s. It is kept in %s.", why.rstrip("."), kept)


def _read(path: Path) -> Row:
    columns: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    return _KINDS[columns.pop("kind")].from_columns(columns)


def _write(history: History, row: Row) -> None:
    if isinstance(row, HistoryRow):
        history.record(row)
    elif isinstance(row, StayRow):
        history.record_stay(row)
    else:
        history.record_contention(row)


def _sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
