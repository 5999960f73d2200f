"""Checkpoints in a local folder: written aside, verified, and made current in one step.

Layout of the folder, which belongs to one run alone::

    current                     the name of the newest good checkpoint
    step-000017/manifest.json   step, and size and SHA-256 of every file
    step-000017/checkpoint      whatever the training saved: a file or a folder
    step-000017.tmp/            a checkpoint being written; never read

The previous checkpoint stays, so that there is one to fall back on if the newest turns out damaged.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("prefect_gpu.training")

SaveCallback = Callable[[Path], object]

_CURRENT = "current"
_MANIFEST = "manifest.json"
_PAYLOAD = "checkpoint"
_NAME = re.compile(r"^step-(\d{6,})(?:\.(\d+))?$")
_KEPT = 2


class CheckpointError(RuntimeError):
    """A checkpoint could not be written. The message says what the saving function did or did not do."""


class CheckpointDamaged(ValueError):
    """What lies on the disk is not what was saved."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified just now.

    Attributes:
        step: Finished steps when it was saved.
        path: What the training saved, to be loaded from: a file or a folder.
        size_bytes: Sum of its files.
        loss: The loss that it was saved with, if one was given.
    """

    step: int
    path: Path
    size_bytes: int
    loss: float | None = None


class CheckpointStore:
    """The checkpoints of one run.

    Example:
        >>> store = CheckpointStore(Path("/tmp/run-1"))                   # doctest: +SKIP
        >>> store.save(lambda path: path.write_text("weights"), step=17)  # doctest: +SKIP
        >>> store.restore().path.read_text()                              # doctest: +SKIP
        'weights'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)

    def save(self, callback: SaveCallback, step: int, loss: float | None = None) -> Checkpoint:
        """Have ``callback(path)`` write a checkpoint and make it the current one.

        Args:
            callback: Creates a file or a folder at the path that it is given (nothing is there yet). A suffix that the
                library appends to the name, as ``numpy.save`` does, is followed.
            step: Finished steps.
            loss: Kept beside it.

        Returns:
            The new current checkpoint.

        Raises:
            CheckpointError: The callback wrote nothing, or more than one thing.
            OSError: The disk is full, say. Whatever the callback raises passes through as well. In all these cases the
                previous checkpoint stays current, and nothing half-written is left.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self._free_name(step)
        aside = self.folder / f"{final.name}.tmp"
        _remove(aside)
        aside.mkdir()
        try:
            callback(aside / _PAYLOAD)
            payload = _find_payload(aside)
            files: dict[str, dict[str, Any]] = {}
            for file in _files(payload):
                files[file.relative_to(aside).as_posix()] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
                _sync(file)
            content = {"step": step, "payload": payload.name, "files": files}
            if loss is not None:
                content["loss"] = loss
            _write(aside / _MANIFEST, json.dumps({"content": content, "sha256": _digest_json(content)}))
            for folder in (aside, *(path for path in payload.rglob("*") if path.is_dir())):
                _sync(folder)
            aside.rename(final)
        except BaseException:
            _remove(aside)
            raise
        _sync(self.folder)
        self._point_to(final.name)
        self._remove_older(final.name)
        return Checkpoint(step, final / payload.name, sum(file["bytes"] for file in files.values()), loss)

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that is complete and undamaged, or None.

        Every file's size and SHA-256 is compared with the manifest first. A damaged checkpoint is skipped with a
        warning in the log, and the previous one is returned.
        """
        for name in self._candidates():
            try:
                return self._verified(self.folder / name)
            except FileNotFoundError:
                continue  # the pointer's target has never been finished, or was removed
            except (CheckpointDamaged, OSError) as error:
                logger.warning("Checkpoint %s is damaged and will not be used: %s", self.folder / name, error)
        return None

    def _candidates(self) -> Iterator[str]:
        """Names of finished checkpoints, the current one first, then from new to old."""
        pointer = None
        with contextlib.suppress(OSError, UnicodeDecodeError):
            pointer = (self.folder / _CURRENT).read_text().strip()
            if _NAME.match(pointer):
                yield pointer
        yield from (name for name in self._finished() if name != pointer)

    def _finished(self) -> list[str]:
        """Names of finished checkpoints, from new to old."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                match = _NAME.match(path.name)
                if match and path.is_dir():
                    found.append((path.stat().st_mtime_ns, int(match[1]), int(match[2] or 0), path.name))
        # By time first: after falling back to an older checkpoint, the newest has the lower step.
        return [name for *_, name in sorted(found, reverse=True)]

    def _verified(self, folder: Path) -> Checkpoint:
        if not folder.is_dir():
            raise FileNotFoundError(folder)
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            content = manifest["content"]
            if manifest["sha256"] != _digest_json(content):
                raise CheckpointDamaged("the manifest is not what was written")
            files, step, payload = content["files"], content["step"], folder / content["payload"]
        except FileNotFoundError:
            raise CheckpointDamaged("it has no manifest") from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointDamaged(f"the manifest cannot be read ({error})") from error
        total = 0
        for name, expected in files.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != expected["bytes"]:
                raise CheckpointDamaged(f"{name} does not have {expected['bytes']} bytes")
            if _digest(file) != expected["sha256"]:
                raise CheckpointDamaged(f"{name} has another content than was saved")
            total += expected["bytes"]
        if not payload.exists():
            raise CheckpointDamaged(f"{payload.name} is missing")
        return Checkpoint(step, payload, total, content.get("loss"))

    def _free_name(self, step: int) -> Path:
        base = self.folder / f"step-{step:06d}"
        name, again = base, 0
        while name.exists():  # the same step a second time: the first stays until the second is complete
            again += 1
            name = base.with_name(f"{base.name}.{again}")
        return name

    def _point_to(self, name: str) -> None:
        fresh = self.folder / f"{_CURRENT}.tmp"
        _write(fresh, name + "\n")
        fresh.replace(self.folder / _CURRENT)
        _sync(self.folder)

    def _remove_older(self, current: str) -> None:
        for name in [name for name in self._finished() if name != current][_KEPT - 1 :]:
            _remove(self.folder / name)
        for leftover in self.folder.glob("step-*.tmp"):  # of a process that was killed while saving
            _remove(leftover)


def _find_payload(folder: Path) -> Path:
    found = sorted(folder.iterdir())
    if folder / _PAYLOAD in found and len(found) == 1:
        return folder / _PAYLOAD
    if len(found) == 1 and found[0].name.startswith(_PAYLOAD):
        return found[0]
    if not found:
        raise CheckpointError(
            "checkpoint= saved nothing: the function has to create a file or a folder at the path that it is given."
        )
    names = ", ".join(path.name for path in found)
    raise CheckpointError(
        f"checkpoint= saved {names}: the function may create one file, or one folder, at the path that it is given. "
        "For several files, make the path a folder: path.mkdir()."
    )


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _digest_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
