"""From a store's address to the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prefect_gpu.training.checkpoints.local import CheckpointStore
from prefect_gpu.training.checkpoints.location import parse_location
from prefect_gpu.training.checkpoints.manifest import Store


def open_store(location: str | Path, credentials: Mapping[str, str] | None = None, pool: str = "") -> Store:
    """The store at an address.

    Args:
        credentials: ``AWS_...`` variables that count instead of the environment's, for a store in S3.
        pool: The id of the run's pool, which is written down with its checkpoints; empty: it has none.

    Raises:
        ValueError: It is no address.
        ModuleNotFoundError: It is in S3, and boto3 is not installed. The message names the command that installs it.
    """
    place = location if isinstance(location, Path) else parse_location(location)
    if isinstance(place, Path):
        return CheckpointStore(place, pool)
    try:
        from prefect_gpu.training.checkpoints.s3 import S3CheckpointStore  # boto3 is imported only where it is used
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Checkpoints in S3 need {error.name}, which is not installed: pip install 'prefect-gpu[s3]'",
            name=error.name,
        ) from error

    return S3CheckpointStore(place, credentials=credentials, pool=pool)
