"""Devices that are out of service: nobody is given one until it is back. Kept in a file, which outlives workers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic.dataclasses import dataclass

from prefect_gpu.runtime.files import UnreadableError, build, load

FILE = "cordoned.json"


@dataclass(frozen=True)
class Cordoned:
    """Why a device is out of service.

    Attributes:
        reason: In words.
        since: Unix seconds.
        by: From when on it is, in Unix seconds: until then it is in service for whoever is done or has saved in time.
            None: at once.
    """

    reason: str
    since: float
    by: float | None = None

    def is_out(self, now: float) -> bool:
        """Whether it is out of service, at a time in Unix seconds."""
        return self.by is None or self.by <= now


class Cordons:
    """The devices of a state folder that are out of service. All workers that use the folder heed them.

    Args:
        state_dir: The folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / FILE
        self._seen: tuple[int, int] | None = None

    def read(self) -> dict[str, Cordoned]:
        """By device. No file: none is out of service.

        Raises:
            UnreadableError: The file is not what it should be.
        """
        try:
            return dict(build(dict[str, Cordoned], load(self._file)))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except UnreadableError as error:
            raise UnreadableError(f"{self._file} cannot be read ({error}): mend it, or remove it") from error

    def changed(self) -> bool:
        """Whether the file is another one than at the last call."""
        try:
            found = os.stat(self._file)
            now = (found.st_mtime_ns, found.st_ino)
        except OSError:
            now = None
        changed, self._seen = now != self._seen, now
        return changed

    def add(self, devices: Mapping[str, str], by: float | None = None) -> None:
        """Take devices out of service, each for its reason. One that is out already gets the new reason.

        Args:
            by: When, in Unix seconds; None: now.

        Raises:
            UnreadableError: See :meth:`read`.
            OSError: The file cannot be written.
        """
        before, now = self.read(), time.time()
        since = {device: before[device].since if device in before else now for device in devices}
        self._write(before | {device: Cordoned(why, since[device], by) for device, why in devices.items()})

    def remove(self, *devices: str) -> None:
        """Put devices back into service. Raises as :meth:`add` does."""
        self._write({device: one for device, one in self.read().items() if device not in devices})

    def _write(self, cordoned: Mapping[str, Cordoned]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({device: _told(one) for device, one in cordoned.items()})
        made = self._file.with_suffix(f".{os.getpid()}.tmp")
        made.write_text(text)
        made.replace(self._file)


def _told(one: Cordoned) -> dict[str, object]:
    """As the file has it; workers of an older version read what has no date."""
    told: dict[str, object] = {"reason": one.reason, "since": one.since}
    return told if one.by is None else told | {"by": one.by}
