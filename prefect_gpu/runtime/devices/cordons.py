"""Devices that are out of service: nobody is given one until it is back. Kept in a file, which outlives workers."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pydantic.dataclasses import dataclass

from prefect_gpu.runtime.disk.files import UnreadableError, build, load

FILE = "cordoned.json"
_TRIES, _PAUSE_S = 100, 0.01  # for the lock, and between two of them


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

    Attributes:
        file: Where they are kept.
    """

    def __init__(self, state_dir: Path) -> None:
        self.file = state_dir / FILE
        self._seen: tuple[int, int] | None = None

    def read(self) -> dict[str, Cordoned]:
        """By device. No file: none is out of service.

        Raises:
            UnreadableError: The file is not what it should be.
        """
        try:
            return dict(build(dict[str, Cordoned], load(self.file)))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except UnreadableError as error:
            ours = not isinstance(error.__cause__, PermissionError)
            remedy = "mend it, or remove it" if ours else "be a user who may read it, the worker's"
            raise UnreadableError(f"{self.file} cannot be read ({error}): {remedy}") from error

    def changed(self) -> bool:
        """Whether the file is another one than at the last call."""
        try:
            found = os.stat(self.file)
            now = (found.st_mtime_ns, found.st_ino)
        except OSError:
            now = None
        changed, self._seen = now != self._seen, now
        return changed

    def add(self, devices: Mapping[str, str], by: float | None = None) -> list[str]:
        """Take devices out of service, each for its reason. One that is out already gets the new reason.

        Args:
            by: When, in Unix seconds; None: now.

        Returns:
            Those that are out already, and keep their reason, as a plan for later puts none back until then.

        Raises:
            UnreadableError: See :meth:`read`.
            OSError: The file cannot be written.
        """
        with self._alone():
            before, now = self.read(), time.time()
            later = by is not None and by > now
            out = [device for device in devices if later and device in before and before[device].is_out(now)]
            since = {device: before[device].since if device in before else now for device in devices}
            added = {device: Cordoned(why, since[device], by) for device, why in devices.items() if device not in out}
            self._write(before | added)
        return out

    def remove(self, *devices: str) -> None:
        """Put devices back into service. Raises as :meth:`add` does."""
        with self._alone():
            self._write({device: one for device, one in self.read().items() if device not in devices})

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the file's folder, so that no other worker or command changes the file meanwhile.

        If the lock cannot be had, or is held for a whole second, the change is made without it.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.file.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for _ in range(_TRIES):
                try:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_PAUSE_S)
                except OSError:  # a file system without locks
                    break
            yield
        finally:
            os.close(folder)

    def _write(self, cordoned: Mapping[str, Cordoned]) -> None:
        text = json.dumps({device: _told(one) for device, one in cordoned.items()})
        made = self.file.with_suffix(f".{os.getpid()}.tmp")
        made.write_text(text)
        made.replace(self.file)


def _told(one: Cordoned) -> dict[str, object]:
    """As the file has it; workers of an older version read what has no date."""
    told: dict[str, object] = {"reason": one.reason, "since": one.since}
    return told if one.by is None else told | {"by": one.by}
