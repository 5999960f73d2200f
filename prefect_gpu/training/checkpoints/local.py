"""Checkpoints in a local folder: written aside, verified, and made current in one step.

Layout of the folder, which belongs to one run alone::

    pool                        the id of the pool whose run it is
    current                     the name of the newest good checkpoint
    step-000017/manifest.json   step, and size and SHA-256 of every file
    step-000017/checkpoint      whatever the training saved: a file or a folder
    step-000017.tmp/            a checkpoint being written; never read
    best/                       another such folder, for the best checkpoint

The previous checkpoint stays, so that there is one to fall back on if the newest turns out damaged. Where the disk has
no room for a third, the older one of two goes before the next is written.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prefect_gpu.training.checkpoints.manifest import (
    PAYLOAD,
    Checkpoint,
    CheckpointDamaged,
    CheckpointError,
    Holding,
    Manifest,
    SaveCallback,
    describe,
    facts_of,
    files_of,
)

logger = logging.getLogger("prefect_gpu.training")

_POOL = "pool"
_CURRENT = "current"
_MANIFEST = "manifest.json"
_NAME = re.compile(r"^step-(\d{6,})(?:\.(\d+))?$")
_OURS = re.compile(r"^(pool|current|step-\d{6,}(\.\d+)?)(\.tmp)?$")
_STORE = re.compile(r"^(best(-[\w-]+)?|training-[\w-]+)$")  # of the best ones, and of a later training of the run
_KEPT = 2
_FULL = (errno.ENOSPC, errno.EDQUOT)
_HARDLY_ANY = 1 << 16  # bytes that are free on a disk that is full


class _NoRoom(CheckpointError):
    """The disk is full."""


class CheckpointStore:
    """The checkpoints of one run, in a folder. A :class:`.Store`.

    Args:
        pool: The id of the run's pool, written down with the first checkpoint; empty: it has none.

    Example:
        >>> store = CheckpointStore(Path("/tmp/run-1"))                   # doctest: +SKIP
        >>> store.save(lambda path: path.write_text("weights"), step=17)  # doctest: +SKIP
        >>> store.restore().path.read_text()                              # doctest: +SKIP
        'weights'
    """

    def __init__(self, folder: Path, pool: str = "") -> None:
        self.folder = Path(folder)
        self._pool = pool

    def save(self, callback: SaveCallback, step: int, loss: float | None = None) -> Checkpoint:
        """See :meth:`.Store.save`."""
        try:
            return self._save(callback, step, loss)
        except _NoRoom:
            if not self._make_room():
                raise
        return self._save(callback, step, loss)

    def _save(self, callback: SaveCallback, step: int, loss: float | None) -> Checkpoint:
        final, aside = self._begin(step)
        try:
            callback(aside / PAYLOAD)
            with ThreadPoolExecutor(1) as disk:  # it writes while we read what is in memory still
                synced = [disk.submit(_sync, file) for file in files_of(aside)]
                manifest = describe(aside, step, loss)
                for one in synced:
                    one.result()
            payload = aside / manifest.payload
            _write(aside / _MANIFEST, manifest.to_json())
            for folder in (aside, *(path for path in payload.rglob("*") if path.is_dir())):
                _sync(folder)
            aside.rename(final)
            _sync(self.folder)
            self._replace(_CURRENT, final.name)
        except BaseException as error:
            full = isinstance(error, Exception) and self._is_full(error, aside)
            _remove(aside)
            if full:
                raise self._no_room(error) from error
            raise
        self._remove_older(final.name)
        return Checkpoint(step, final / manifest.payload, manifest.size_bytes, loss)

    def _begin(self, step: int) -> tuple[Path, Path]:
        """(Where a checkpoint will be, an empty folder to write it in.)"""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._pool and self._made_for() != self._pool:
                self._replace(_POOL, self._pool)
            final = self._free_name(step)
            aside = self.folder / f"{final.name}.tmp"
            _remove(aside)
            aside.mkdir()
        except OSError as error:
            if error.errno in _FULL:
                raise self._no_room(error) from error
            raise CheckpointError(
                f"Nothing can be written in {self.folder}: let the run's user write there, or name another folder "
                f"(PREFECT_INTEGRATIONS_GPU_CHECKPOINTS). ({error})"
            ) from error
        return final, aside

    def restore(self) -> Checkpoint | None:
        """See :meth:`.Store.restore`."""
        try:
            os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # to begin anew would end with the loss of what is there
            raise CheckpointError(
                f"The checkpoints in {self.folder} are out of reach: {error}. Check that its disk is there, and let "
                "the run's user read it."
            ) from error
        for name in self._candidates():
            try:
                return self._verified(self.folder / name)
            except FileNotFoundError:
                continue  # the pointer's target has never been finished, or was removed
            except (CheckpointDamaged, OSError) as error:
                logger.warning("Checkpoint %s is damaged and will not be used: %s", self.folder / name, error)
        return None

    def remove(self) -> None:
        """See :meth:`.Store.remove`."""
        for path in sorted(self._entries(), key=lambda path: path.name == _POOL):  # last: it says whose the rest is
            if _STORE.match(path.name):
                CheckpointStore(path).remove()
            elif _OURS.match(path.name):
                _remove(path)
        with contextlib.suppress(OSError):  # what else lies there stays
            self.folder.rmdir()

    def holding(self) -> Holding | None:
        """See :meth:`.Store.holding`."""
        try:
            changed_at = self._last_change()
        except OSError:  # a checkpoint is being removed right now, or the disk is broken
            return None
        return None if changed_at is None else Holding(changed_at, self._made_for())

    def stores_below(self, named: Callable[[str], bool]) -> Iterator[tuple[str, CheckpointStore]]:
        """See :meth:`.Store.stores_below`."""
        with contextlib.suppress(OSError):  # there is none yet, or it is out of reach
            for folder in self.folder.iterdir():
                if named(folder.name):
                    yield folder.name, CheckpointStore(folder)

    def _made_for(self) -> str:
        """The id of the pool whose run it is; empty: it is not written down."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self.folder / _POOL).read_text().strip()
        # The run's first training may have saved none.
        below = (CheckpointStore(path)._made_for() for path in self._entries() if _STORE.match(path.name))
        return next(filter(None, below), "")

    def _last_change(self) -> float | None:
        """Unix seconds of the newest change of anything in it; None: it holds nothing, or something that is foreign.

        Raises:
            OSError: What was there is gone again, or out of reach.
        """
        newest = None
        for path in self._entries():
            if _STORE.match(path.name):
                changed = path.stat().st_mtime if _is_empty(path) else CheckpointStore(path)._last_change()
            else:
                changed = _newest(path) if _OURS.match(path.name) else None
            if changed is None:
                return None
            newest = max(changed, newest or changed)
        return newest

    def _entries(self) -> list[Path]:
        """What lies in it. One that is a link leads to what is not ours."""
        try:
            return [] if self.folder.is_symlink() else list(self.folder.iterdir())
        except OSError:
            return []

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
            manifest = Manifest.from_json((folder / _MANIFEST).read_bytes())
        except FileNotFoundError:
            raise CheckpointDamaged("it has no manifest") from None
        for name, expected in manifest.files.items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != expected.bytes:
                raise CheckpointDamaged(f"{name} does not have {expected.bytes} bytes")
            manifest.check(name, facts_of(file))
        payload = folder / manifest.payload
        if not payload.exists():
            raise CheckpointDamaged(f"{payload.name} is missing")
        return Checkpoint(manifest.step, payload, manifest.size_bytes, manifest.loss)

    def _free_name(self, step: int) -> Path:
        base = self.folder / f"step-{step:06d}"
        name, again = base, 0
        while name.exists():  # the same step a second time: the first stays until the second is complete
            again += 1
            name = base.with_name(f"{base.name}.{again}")
        return name

    def _replace(self, name: str, text: str) -> None:
        fresh = self.folder / f"{name}.tmp"
        _write(fresh, text + "\n")
        fresh.replace(self.folder / name)
        _sync(self.folder)

    def _no_room(self, error: BaseException) -> _NoRoom:
        return _NoRoom(f"The disk of {self.folder} has no room for it: make room there. ({error})")

    def _is_full(self, error: Exception, aside: Path) -> bool:
        """Whether the disk was too small. What frameworks raise then often does not say so: PyTorch's is no OSError."""
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        with contextlib.suppress(OSError):
            before = next((_size(self.folder / name) for name in self._finished()), 0)
            return shutil.disk_usage(self.folder).free < max(_HARDLY_ANY, before - _size(aside))
        return False

    def _make_room(self) -> bool:
        """Keep nothing but the newest good checkpoint. False: there was nothing else.

        The disk may have room for two and not for three. Then there is none to fall back on while one is written; else
        no more would ever be saved.
        """
        good = self.restore()
        if good is None:
            return False
        there = [*(self.folder / name for name in self._finished()), *self.folder.glob("step-*.tmp")]
        others = [path for path in there if path != good.path.parent]
        for path in others:
            _remove(path)
        return bool(others)

    def _remove_older(self, current: str) -> None:
        for name in [name for name in self._finished() if name != current][_KEPT - 1 :]:
            _remove(self.folder / name)
        for leftover in self.folder.glob("step-*.tmp"):  # of a process that was killed while saving
            _remove(leftover)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_empty(path: Path) -> bool:
    """Whether it is a folder with nothing in it, as the first one that cannot be saved leaves it."""
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in files_of(path))


def _newest(path: Path) -> float:
    return max(one.lstat().st_mtime for one in (path, *path.rglob("*")))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
