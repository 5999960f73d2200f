"""When Prefect is told what is only shown: one thing at a time, a small part of the time, and after what matters."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

SHARE = 0.05  # of the time that may go into what is shown of waiting runs and of progress
CREDIT_S = 3.0  # of writing that may be saved up, so that a small pool is shown at once, and that may be owed
QUIET_S = 1.0  # after a submission
# After one of many. A server that is being written to takes seconds for one; a pause of that length is no end of it.
QUIET_AFTER_MANY_S = 6.0
LONGER_EACH_S = 0.25  # than after the one before: whoever submits a few runs sees soon why they wait
LONGEST_S = 60.0  # that waiting runs give way to submissions without a break


class Lane:
    """Where what is only shown is written to Prefect.

    A server on SQLite takes one write at a time, and grows many times slower when several are tried at once. So what is
    only shown is written one at a time. What can wait (which runs wait and why, progress, losses) has a budget, too: a
    share of the time, measured by how long the server takes, so that less is shown on a slow disk. It gives way to runs
    that are started and ended, and what is shown of waiting runs gives way to submissions. The pool's page and
    ``prefect-gpu status`` know all of it at once.

    Args:
        clock: Monotonic seconds; tests may replace it.

    Example:
        >>> now = 0.0
        >>> lane = Lane(clock=lambda: now)
        >>> async def show():
        ...     global now
        ...     async with lane.budgeted():
        ...         now += 5.0
        >>> lane.is_free, asyncio.run(show()), lane.is_free, lane.free_in_s
        (True, None, False, 40.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = asyncio.Lock()
        self._credit_s, self._counted_at = CREDIT_S, clock()
        self._urgent = 0
        self._in_a_row = 0
        self._submitted_at = self._let_through_at = self._quiet_at = float("-inf")

    @contextlib.asynccontextmanager
    async def reserved(self) -> AsyncIterator[None]:
        """Write something, whatever the budget: there is little of it in the life of a run."""
        async with self._lock:
            yield

    @contextlib.asynccontextmanager
    async def budgeted(self) -> AsyncIterator[None]:
        """Write something on the budget."""
        async with self._lock:
            began = self._clock()
            try:
                yield
            finally:
                self._count()
                self._credit_s = max(-CREDIT_S, self._credit_s - (self._clock() - began))

    @contextlib.contextmanager
    def urgent(self) -> Iterator[None]:
        """Meanwhile a run is started or ended in Prefect."""
        self._urgent += 1
        try:
            yield
        finally:
            self._urgent -= 1

    def submission(self) -> None:
        """A run was submitted just now; others will probably be."""
        now = self._clock()
        if now > self._quiet_at:
            self._let_through_at = now
        self._in_a_row = self._in_a_row + 1 if now - self._submitted_at < LONGEST_S else 0
        self._quiet_at = now + min(QUIET_AFTER_MANY_S, QUIET_S + LONGER_EACH_S * self._in_a_row)
        self._submitted_at = now

    @property
    def among_submissions(self) -> bool:
        """Whether a run was submitted a moment ago, and others will probably be."""
        return self._clock() <= self._quiet_at

    @property
    def free_in_s(self) -> float:
        """Seconds until the budget allows to write again; 0: it does."""
        self._count()
        return max(0.0, -self._credit_s / SHARE)

    @property
    def is_free(self) -> bool:
        """Whether to write now what can wait: there is budget for it, and no run is being started or ended."""
        return not self._urgent and not self._lock.locked() and self.free_in_s == 0.0

    def lets_through(self) -> bool:
        """Whether to write now what is shown of a waiting run; once a minute if runs are submitted all the time."""
        now = self._clock()
        if self.is_free and (not self.among_submissions or now - self._let_through_at > LONGEST_S):
            self._let_through_at = now
            return True
        return False

    def _count(self) -> None:
        now = self._clock()
        self._credit_s = min(CREDIT_S, self._credit_s + (now - self._counted_at) * SHARE)
        self._counted_at = now
