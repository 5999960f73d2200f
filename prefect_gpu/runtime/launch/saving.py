"""Brings the records of launches up to date, as soon as the disk lets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RecordStore

_AGAIN_S = 10.0


class RecordSaver:
    """Writes what a launch's record says now. No run suffers where it cannot: until it can, an older record will do.

    Args:
        runs: Those that are launched, by their ids.
        may_write: Whether this worker may still write at all.
    """

    def __init__(
        self,
        records: RecordStore,
        runs: Mapping[str, Launch],
        may_write: Callable[[], bool],
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._records, self._runs, self._may_write, self._logger = records, runs, may_write, logger
        self._outdated: dict[str, Launch] = {}  # whose records could not be brought up to date
        self._again: asyncio.TimerHandle | None = None

    def save(self, run: Launch) -> None:
        """Bring the record up to date; where the disk is full, later."""
        if run.damaged:
            return
        try:
            self._records.write(run.folder, run.record)
            self._outdated.pop(run.run_id, None)
        except OSError as error:
            log = self._logger.debug if run.run_id in self._outdated else self._logger.warning
            log("The record of run %s could not be brought up to date: %s", run.record.name, error)
            self._outdated[run.run_id] = run
            if self._again is None:
                self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._save_again)

    def close(self) -> None:
        """Try nothing again."""
        if self._again is not None:
            self._again.cancel()

    def _save_again(self) -> None:
        self._again = None
        outdated, self._outdated = self._outdated, {}
        if not self._may_write():
            return
        for run_id, run in outdated.items():
            if self._runs.get(run_id) is run:
                self._outdated[run_id] = run  # what failed before is no news
                self.save(run)
