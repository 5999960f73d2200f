"""Where data and models are kept: a folder, S3, or what a Prefect block says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from prefect_gpu.training.checkpoints import CheckpointStore, Store
from prefect_gpu.training.checkpoints.location import S3Location, parse_location

_BLOCK = "block:checkpoint-storage/"


@dataclass(frozen=True)
class Place:
    """A folder, or a prefix in S3.

    Attributes:
        location: Where it is.
        credentials: ``AWS_...`` variables; empty: boto3 finds credentials by itself. Secret.
        block: How a block refers to it; empty: no block does.
    """

    location: S3Location | Path
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    block: str = ""

    @property
    def address(self) -> str:
        """What another process finds it by, from whichever folder; without credentials."""
        return self.block or str(self.location)

    def below(self, name: str) -> Place:
        """A part of it; ``""`` is the place itself."""
        if not name:
            return self
        inner = self.location / name if isinstance(self.location, Path) else self.location.below(name)
        return replace(self, location=inner, block=self.block and f"{self.block}/{name}")

    def client(self) -> Any:
        """A client for S3.

        Raises:
            ModuleNotFoundError: boto3 is not installed. The message names the command that installs it.
        """
        assert isinstance(self.location, S3Location)
        try:
            from prefect_gpu.training.checkpoints.s3 import s3_client  # boto3 is imported only where it is used
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{self} needs {error.name}, which is not installed: pip install 'prefect-gpu[s3]'", name=error.name
            ) from error
        return s3_client(self.location, self.credentials, of_run=False)

    def store(self) -> Store:
        """What keeps files here as checkpoints are kept: sent in parts, verified, and whole or not there.

        Raises:
            ModuleNotFoundError: As of :meth:`client`.
        """
        if isinstance(self.location, Path):
            return CheckpointStore(self.location)
        client = self.client()  # says what is missing, if boto3 is
        from prefect_gpu.training.checkpoints.s3 import S3CheckpointStore

        return S3CheckpointStore(self.location, client)

    def __str__(self) -> str:
        return str(self.location)


def find_place(place: str | Path, field_name: str) -> Place:
    """Read an address.

    Args:
        place: A folder's path; ``s3://bucket/prefix?endpoint_url=...&region=...``; or
            ``block:checkpoint-storage/NAME/prefix``, for what that block says, with its credentials.
        field_name: What the address is for, as errors name it.

    Raises:
        ValueError: It is none, or there is no such block. The message names the field, the value and the remedy.

    Example:
        >>> str(find_place("s3://models/digits?region=eu-central-1", "registry"))
        's3://models/digits?region=eu-central-1'
    """
    if not isinstance(place, (str, Path)):  # such as what the environment does not say
        raise ValueError(f"{field_name}={place!r} is no place: give the path of a folder, or s3://bucket/prefix")
    text = str(place)
    if text.startswith("block:"):
        return _of_block(text, field_name)
    try:
        found = parse_location(text)
    except ValueError as error:
        raise ValueError(str(error).replace("checkpoints=", f"{field_name}=", 1)) from None
    return Place(found.expanduser().absolute() if isinstance(found, Path) else found)


def _of_block(text: str, field_name: str) -> Place:
    name, _, prefix = text.removeprefix(_BLOCK).partition("/")
    if not text.startswith(_BLOCK) or not name:
        raise ValueError(f"{field_name}={text!r}: the form is {_BLOCK}NAME, or {_BLOCK}NAME/prefix.")
    from prefect_gpu.blocks import CheckpointStorage

    try:
        block = cast(CheckpointStorage, CheckpointStorage.load(name, _sync=True))  # type: ignore[call-arg]  # also in a loop
    except ValueError as error:
        raise ValueError(
            f"{field_name}={text!r}: {error} `prefect-gpu register FILE` registers blocks, and `prefect block ls` "
            "lists them."
        ) from None
    return Place(parse_location(block.location), block.environment, f"{_BLOCK}{name}").below(prefix.strip("/"))
