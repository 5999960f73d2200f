"""Data that arrive as files, in a folder or below a prefix of S3: which there are, and the event that says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from prefect_gpu.retraining.places import Place, find_place
from prefect_gpu.training.checkpoints.manifest import facts_of

ARRIVED = "dataset.arrived"
"""The event's name."""


@dataclass(frozen=True)
class Snapshot:
    """The files that there were at one moment.

    Attributes:
        version: The same for the same names and contents, and for no others.
        names: Relative to the data's place, in their order.
    """

    version: str
    names: tuple[str, ...]


class DataFiles:
    """The files of a data set. Whoever adds one writes it under another name first, and then renames it.

    Args:
        place: A folder that all runs see, ``s3://bucket/prefix``, or ``block:checkpoint-storage/NAME/prefix``.
        pattern: Which names count, as a shell's pattern. Those that begin with a dot count only if it does, too.

    Raises:
        ValueError: ``place`` is none.
    """

    def __init__(self, place: str | Path, pattern: str = "*") -> None:
        self.place: Place = find_place(place, "data")
        self._pattern = pattern

    def snapshot(self) -> Snapshot:
        """What is there now. In a folder, each file is read for its hash; of S3, its own hashes (ETags) are taken.

        Raises:
            OSError: The folder cannot be read.
            ConnectionError: S3 is out of reach.
        """
        known = sorted(self._facts())
        version = hashlib.sha256("".join(f"{name} {fact}\n" for name, fact in known).encode()).hexdigest()
        return Snapshot(version[:16], tuple(name for name, _ in known))

    def read(self, name: str) -> bytes:
        """One file's content.

        Raises:
            FileNotFoundError: There is none of this name.
            OSError: It cannot be read.
            ConnectionError: S3 is out of reach.
        """
        location = self.place.location
        if isinstance(location, Path):
            return (location / name).read_bytes()
        with self._in_s3() as client:
            found = client.get_object(Bucket=location.bucket, Key=location.below(name).prefix)
            return bytes(found["Body"].read())

    def add(self, name: str, content: bytes) -> None:
        """Add a file, or replace it, whole or not at all.

        Raises:
            OSError: It cannot be written.
            ConnectionError: S3 is out of reach.
        """
        location = self.place.location
        if isinstance(location, Path):
            location.mkdir(parents=True, exist_ok=True)
            aside = location / f".{name}.tmp"
            aside.write_bytes(content)
            aside.replace(location / name)
        else:
            with self._in_s3() as client:
                client.put_object(Bucket=location.bucket, Key=location.below(name).prefix, Body=content)

    def _counts(self, name: str) -> bool:
        """Whether it is one of the files: for a shell, hidden ones are none. S3's consoles make one without a name."""
        hidden = name.startswith(".") and not self._pattern.startswith(".")
        return bool(name) and not hidden and fnmatch(name, self._pattern)

    def _facts(self) -> Iterator[tuple[str, str]]:
        location = self.place.location
        if isinstance(location, Path):
            paths: list[Path] = []
            with suppress(FileNotFoundError):  # nothing has arrived yet
                paths = list(location.iterdir())
            for path in paths:
                with suppress(FileNotFoundError):  # it has just been removed
                    if self._counts(path.name) and path.is_file():
                        yield path.name, facts_of(path).sha256
            return
        base = f"{location.prefix}/".lstrip("/")
        with self._in_s3() as client:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=location.bucket, Prefix=base, Delimiter="/"):
                found = ((one["Key"][len(base) :], one["ETag"]) for one in page.get("Contents") or ())
                yield from (one for one in found if self._counts(one[0]))

    @contextmanager
    def _in_s3(self) -> Iterator[Any]:
        """A client, whose errors become those that a folder would give, with their remedy."""
        client = self.place.client()  # says what is missing, if boto3 is
        from botocore.exceptions import BotoCoreError, ClientError

        from prefect_gpu.training.checkpoints.s3 import error_code, out_of_reach

        try:
            yield client
        except (BotoCoreError, ClientError) as error:
            if isinstance(error, ClientError) and error_code(error) == "NoSuchKey":
                raise FileNotFoundError(f"{self.place} has no such file: {error}") from error
            raise ConnectionError(out_of_reach(f"The data at {self.place} are", error)) from error


def announce(dataset: str, files: DataFiles) -> Snapshot:
    """Emit the event ``dataset.arrived``, on which an automation of Prefect's starts a retraining.

    The same data give an event with the same id: Prefect takes it once, however often it is sent.

    Args:
        dataset: What the trigger is about: the event's resource is ``dataset.<dataset>``.
        files: Its files.

    Returns:
        What was announced.

    Raises:
        ValueError: ``dataset`` is no name.
        TypeError: ``files`` are none, such as the name of their folder.
        ConnectionError: No Prefect server answers, so that nobody would hear of it. The message says what to do.
    """
    from prefect.events import emit_event

    if not isinstance(dataset, str) or not dataset.strip():
        raise ValueError(f"dataset={dataset!r} is no name: give the one that the automation's trigger has.")
    if not isinstance(files, DataFiles):
        raise TypeError(f"files={files!r} is not allowed: give DataFiles({files!r}).")
    snapshot, place = files.snapshot(), files.place.address
    _ask_server()
    emit_event(
        ARRIVED,
        resource={"prefect.resource.id": f"dataset.{dataset}", "prefect.resource.name": dataset},
        payload={"data": place, "version": snapshot.version, "files": len(snapshot.names)},
        id=uuid5(NAMESPACE_URL, f"{ARRIVED} {dataset} {place} {snapshot.version}"),
    )
    return snapshot


def _ask_server() -> None:
    """Events are sent in the background, where a failure is logged and nothing else."""
    from prefect.client.orchestration import get_client

    from prefect_gpu.server_needed import server_needed

    with server_needed("Nobody hears of the data"), get_client(sync_client=True) as client:
        client.hello().raise_for_status()
