"""Where the checkpoints of a pool's runs are: a store for each, below one place."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from prefect_gpu.runtime.leftovers import Leftover, is_run_id
from prefect_gpu.training.checkpoints import CheckpointError, open_store
from prefect_gpu.training.checkpoints.location import parse_location, part_of


class RunCheckpoints:
    """The checkpoints of all runs. They outlive the attempts of a run, and are removed when it needs them no more.

    Args:
        location: A folder, or ``s3://bucket/prefix``. Others may keep there what they like.
        logger: Told of what could not be removed.
        credentials: ``AWS_...`` variables that the worker itself needs for it; None: they are in its environment.
        pool: The id of the pool, which runs mark their checkpoints with; empty: it has none.

    Raises:
        ValueError: The location is none.
    """

    def __init__(
        self, location: str, logger: logging.Logger, credentials: Mapping[str, str] | None = None, pool: str = ""
    ) -> None:
        self.pool = pool
        self._place = parse_location(location)
        self._location = location
        self._logger = logger
        self._credentials = credentials

    def of(self, run_id: str) -> str:
        """The address of a run's store."""
        return part_of(self._location, run_id)

    def shared(self, run_id: str) -> tuple[Path, ...]:
        """The folders that a run must see to use its store; none if it is in S3."""
        return (self._place / run_id,) if isinstance(self._place, Path) else ()

    def remove(self, run_id: str) -> None:
        """The run will not carry on from them any more."""
        try:
            open_store(self.of(run_id), self._credentials).remove()
        except CheckpointError as error:
            self._logger.warning("The checkpoints of run %s could not be removed: %s", run_id, error)

    def leftovers(self) -> Iterator[Leftover]:
        """What runs have left there. Where that cannot be seen, it is logged."""
        try:
            for run_id, store in open_store(self._location, self._credentials).stores_below(is_run_id):
                held = store.holding()
                if held is not None:
                    yield Leftover(run_id, held.pool, held.changed_at, store.remove)
        except CheckpointError as error:
            self._logger.warning("Whether old runs have left checkpoints is not known: %s", error)
