"""Decisions that failed: a policy has a bug, or a request that nobody has thought of. They are logged, and told."""

from __future__ import annotations

from logging import Logger
from typing import NamedTuple

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.scheduler import SchedulingError

SET_ASIDE_S = 60.0
"""For a run for which the scheduler could not look for a place, and from a decision that failed to the next."""


class _Failed(NamedTuple):
    """Why, when that was logged, and when it was so last."""

    words: str
    said_at: float
    last: float


class FailedDecisions:
    """Remembers the newest one.

    Args:
        logger: Told of each; of the same again at most once a minute, as runs report every second.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._newest: _Failed | None = None

    def note(self, event: ev.Event, error: SchedulingError, now: float) -> None:
        """A decision failed at an event."""
        before, words = self._newest, str(error)
        if before is None or before.words != words or now - before.said_at >= SET_ASIDE_S:
            of_run = "" if error.job is None else f" of run {error.job}"
            self._logger.error("The scheduler failed at %s%s", type(event).__name__, of_run, exc_info=error)
            self._newest = _Failed(words, now, now)
        else:
            self._newest = _Failed(words, before.said_at, now)

    def trouble(self, now: float) -> str:
        """What is wrong, in words; empty: for two minutes nothing was."""
        if self._newest is None or now - self._newest.last > 2 * SET_ASIDE_S:
            return ""
        return f"decisions fail ({self._newest.words}): the worker's log says where"
