"""What a checkpoint consists of, so that only a complete and undamaged one is ever used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

SaveCallback = Callable[[Path], object]

PAYLOAD = "checkpoint"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or asked for. The message says why and what to do."""


class CheckpointDamaged(ValueError):
    """What is stored is not what was saved."""


@dataclass(frozen=True)
class Holding:
    """What a store holds of its run.

    Attributes:
        changed_at: Unix seconds of the newest change of anything in it.
        pool: The id of the pool whose run it is; empty: it is not written down.
    """

    changed_at: float
    pool: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified just now.

    Attributes:
        step: Finished steps when it was saved.
        path: What the training saved, to be loaded from: a file or a folder.
        size_bytes: Sum of its files.
        loss: The loss that it was saved with, if one was given.
        kept_at: Where it is kept, for people; empty: at ``path``.
    """

    step: int
    path: Path
    size_bytes: int
    loss: float | None = None
    kept_at: str = ""


class Store(Protocol):
    """The checkpoints of one run, wherever they are."""

    def save(self, callback: SaveCallback, step: int, loss: float | None = None) -> Checkpoint:
        """Have ``callback(path)`` write a checkpoint and make it the current one; the previous one stays, too.

        Args:
            callback: Creates a file or a folder at the path that it is given (nothing is there yet). A suffix that the
                library appends to the name, as ``numpy.save`` does, is followed. It is called a second time if the disk
                had no room, and some could be made.
            step: Finished steps.
            loss: Kept beside it.

        Returns:
            The new current checkpoint.

        Raises:
            CheckpointError: The callback wrote nothing, or more than one thing; or the store is out of reach, or full.
            OSError: The disk is broken, say. Whatever the callback raises passes through as well. In all these cases
                the previous checkpoint stays current, and nothing half-written is ever used.
        """

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that is complete and undamaged, or None.

        Every file's size and SHA-256 is compared with the manifest first. A damaged checkpoint is skipped with a
        warning in the log, and the previous one is returned.

        Raises:
            CheckpointError: The store is out of reach, so that nobody knows whether there is one.
        """

    def remove(self) -> None:
        """Remove everything of the run. What else lies there stays.

        Raises:
            CheckpointError: The store is out of reach, or keeps something. The rest can be removed later.
            OSError: The disk keeps something.
        """

    def holding(self) -> Holding | None:
        """What it holds; None: nothing, something that is not ours, or what changes while we look.

        Raises:
            CheckpointError: The store is out of reach.
        """

    def stores_below(self, named: Callable[[str], bool]) -> Iterator[tuple[str, Store]]:
        """The stores below this place, which is itself no store then, with their names.

        Args:
            named: Whether a store is called so; others may keep there what they like.

        Raises:
            CheckpointError: The place is out of reach.
        """


@dataclass(frozen=True)
class FileFacts:
    """One file: its size in bytes, and the SHA-256 of its content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
        step: Finished steps.
        payload: Name of the file or folder that the training saved.
        files: By path relative to what the payload lies in.
        loss: If one was given.
        place: Where its files are, for a store that needs to be told.
        folders: Those with nothing in them, by path as files: S3 knows no folders, and some libraries miss them.
    """

    step: int
    payload: str
    files: dict[str, FileFacts]
    loss: float | None = None
    place: str = ""
    folders: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.bytes for file in self.files.values())

    def to_json(self) -> str:
        """Text from which :meth:`from_json` makes the same again, or sees that it was damaged."""
        content = {key: value for key, value in asdict(self).items() if value not in (None, "", ())}
        return json.dumps({"content": content, "sha256": _digest_json(content)})

    @classmethod
    def from_json(cls, text: bytes | str) -> Manifest:
        """Read what :meth:`to_json` wrote.

        Raises:
            CheckpointDamaged: It is not what was written.
        """
        try:
            manifest = json.loads(text)
            content = manifest["content"]
            if manifest["sha256"] != _digest_json(content):
                raise CheckpointDamaged("the manifest is not what was written")
            files = {name: FileFacts(**facts) for name, facts in content["files"].items()}
            return cls(**{**content, "files": files, "folders": tuple(content.get("folders", ()))})
        except CheckpointDamaged:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointDamaged(f"the manifest cannot be read ({error})") from error

    def check(self, name: str, facts: FileFacts) -> None:
        """Compare a file with what was saved.

        Raises:
            CheckpointDamaged: It is another one.
        """
        expected = self.files[name]
        if facts.bytes != expected.bytes:
            raise CheckpointDamaged(f"{name} does not have {expected.bytes} bytes")
        if facts.sha256 != expected.sha256:
            raise CheckpointDamaged(f"{name} does not have the content that was saved")


def describe(folder: Path, step: int, loss: float | None = None, place: str = "") -> Manifest:
    """The manifest of what a training has just saved into a folder of its own.

    Raises:
        CheckpointError: It saved nothing, or more than one thing.
    """
    payload = _find_payload(folder)
    files = {file.relative_to(folder).as_posix(): facts_of(file) for file in files_of(payload)}
    folders = tuple(empty.relative_to(folder).as_posix() for empty in _empty_folders(payload))
    return Manifest(step, payload.name, files, loss, place, folders)


def facts_of(file: Path) -> FileFacts:
    """Read a file through."""
    digest, size = hashlib.sha256(), 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return FileFacts(size, digest.hexdigest())


def files_of(path: Path) -> list[Path]:
    """The file, or all files below the folder."""
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _empty_folders(path: Path) -> list[Path]:
    found = [path, *path.rglob("*")] if path.is_dir() else []
    return sorted(one for one in found if one.is_dir() and not any(one.iterdir()))


def _find_payload(folder: Path) -> Path:
    found = sorted(folder.iterdir())
    if folder / PAYLOAD in found and len(found) == 1:
        return folder / PAYLOAD
    if len(found) == 1 and found[0].name.startswith(PAYLOAD):
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


def _digest_json(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
