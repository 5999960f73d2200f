"""Numbered records that are written once and never changed: whoever comes second learns that the number is taken.

On this all else rests: two processes that write the same number at the same time do not overwrite each other, in a
folder (a hard link to a name that is taken fails) as in S3 (``If-None-Match``).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from prefect_gpu.retraining.places import Place
from prefect_gpu.storage.row import storable
from prefect_gpu.training.checkpoints.location import S3Location

_NAME = re.compile(r"(\d{4,})\.json")
_TRIES = 5


class RegistryError(RuntimeError):
    """The registry cannot be used, or does not have what is asked for. The message says why and what to do."""


class Records(Protocol):
    """One list of records. They are JSON objects with numbers from 1."""

    def numbers(self) -> list[int]:
        """The numbers that are taken, in their order."""

    def read(self, number: int) -> dict[str, Any]:
        """One record.

        Raises:
            RegistryError: It cannot be read.
        """

    def add(self, number: int, content: Mapping[str, Any]) -> bool:
        """Write a record, whole or not at all. False: the number is taken, and nothing was written.

        Raises:
            RegistryError: It could not be written.
        """


def open_records(place: Place) -> Records:
    """The records at a place, which may be empty."""
    return FolderRecords(place.location) if isinstance(place.location, Path) else S3Records(place)


class FolderRecords:
    """Records as files of a folder, which may be shared by several machines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self) -> list[int]:
        """See :class:`Records`."""
        names: list[str] = []
        with self._in_reach(), suppress(FileNotFoundError):  # it comes with the first record
            names = os.listdir(self._folder)
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def read(self, number: int) -> dict[str, Any]:
        """See :class:`Records`."""
        path = self._folder / _name(number)
        with self._in_reach():
            return _parsed(path.read_bytes(), str(path))

    def add(self, number: int, content: Mapping[str, Any]) -> bool:
        """See :class:`Records`."""
        with self._in_reach():
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = self._folder / f".{secrets.token_hex(8)}.tmp"
            try:
                with aside.open("w") as file:
                    json.dump(content, file, indent=2)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(aside, self._folder / _name(number))
            except FileExistsError:
                return False
            finally:
                aside.unlink(missing_ok=True)
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return True

    @contextmanager
    def _in_reach(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RegistryError(
                f"The registry's folder {self._folder} cannot be used: {error.strerror}. Name a folder that this user "
                "may write to, and that all runs see."
            ) from error


class S3Records:
    """Records as small objects below a prefix in S3."""

    def __init__(self, place: Place) -> None:
        assert isinstance(place.location, S3Location)
        self._location = place.location
        self._client = place.client()

    def numbers(self) -> list[int]:
        """See :class:`Records`."""
        base = self._key("")
        with self._in_reach():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._location.bucket, Prefix=base)
            names = [one["Key"][len(base) :] for page in pages for one in page.get("Contents") or ()]
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, names) if found)

    def read(self, number: int) -> dict[str, Any]:
        """See :class:`Records`."""
        key = self._key(_name(number))
        with self._in_reach():
            found = self._client.get_object(Bucket=self._location.bucket, Key=key)["Body"].read()
        return _parsed(found, f"s3://{self._location.bucket}/{key}")

    def add(self, number: int, content: Mapping[str, Any]) -> bool:
        """See :class:`Records`."""
        from botocore.exceptions import ClientError

        from prefect_gpu.training.checkpoints.s3 import TAKEN, content_md5, error_code

        body = json.dumps(content, indent=2).encode()
        target = {"Bucket": self._location.bucket, "Key": self._key(_name(number))}
        # Two who decide the same in the same second write the same: whose it is, is told by this.
        mine = {"writer": secrets.token_hex(8)}
        with self._in_reach():
            for _ in range(_TRIES):
                try:
                    self._client.put_object(
                        **target, Body=body, ContentMD5=content_md5(body), Metadata=mine, IfNoneMatch="*"
                    )
                except ClientError as error:
                    if error_code(error) not in TAKEN:
                        raise
                    # Others took it; or it is ours, and the answer to a first try was lost; or it is being written.
                    if number in self.numbers():
                        return bool(self._client.head_object(**target)["Metadata"] == mine)
                    continue
                return True
        raise RegistryError(f"{self._location}: S3 says each time that others are writing {_name(number)}: try again.")

    def _key(self, name: str) -> str:
        return f"{self._location.prefix}/{name}".lstrip("/")

    @contextmanager
    def _in_reach(self) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        from prefect_gpu.training.checkpoints.s3 import out_of_reach

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise RegistryError(out_of_reach(f"The registry at {self._location} is", error)) from error


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of it: a NumPy number is a number, and what JSON does not know is its text.

    Example:
        >>> plain({"folder": Path("models"), "shape": (8, 4)})
        {'folder': 'models', 'shape': [8, 4]}
    """
    return dict(json.loads(json.dumps(content, default=storable)))


def _name(number: int) -> str:
    return f"{number:04d}.json"


def _parsed(text: bytes, where: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise RegistryError(f"{where} is not what was written there ({error}): bring it back from a backup.") from None
