"""The log of scheduling events on disk: written as they happen, bounded in size, readable by ``scheduling.record``."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from prefect_gpu.scheduling import record
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities

logger = logging.getLogger("prefect_gpu.events")

_MAX_BYTES = 32 * 1024 * 1024


class EventLog:
    """Appends events to a file that starts anew with each worker; the previous worker's is kept beside it."""

    def __init__(self, path: Path, profile: str, abilities: Abilities = NOTHING_SPECIAL) -> None:
        self._path = path
        self._header = record.header(profile, abilities)
        self._file: TextIO | None = None
        self._broken = False

    def write(self, event: ev.Event, now: float) -> None:
        """Append one event. Time that merely passed is written too: it may have made a run due.

        An event that cannot be written is lost to the log, and to nothing else.
        """
        if self._broken:
            return
        try:
            self._append(event, now)
        except OSError as error:  # a full disk, say: a log with a gap could not be replayed, so it ends here
            self._broken = True
            logger.warning("The log of events %s ends here: %s", self._path, error)
            with suppress(OSError):
                self.close()

    def _append(self, event: ev.Event, now: float) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._path.replace(self._path.with_suffix(".previous.jsonl"))
            self._file = self._path.open("w", buffering=1)
            self._file.write(self._header + "\n")
        if self._file.tell() < _MAX_BYTES:
            self._file.write(record.encode(event, now) + "\n")

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
