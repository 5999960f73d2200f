"""What runs have left that will not come back: found and removed once a day."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol
from uuid import UUID

DAY_S = 86_400.0


@dataclass(frozen=True)
class Leftover:
    """Something of a run that outlives its launches.

    Attributes:
        pool: The id of the pool that it was made for; empty: unknown.
        changed_at: Unix seconds of the newest change of anything in it.
        remove: Removes it.
    """

    run_id: str
    pool: str
    changed_at: float
    remove: Callable[[], None]


def is_run_id(name: str) -> bool:
    """Whether a file or folder is called as those of runs are."""
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


class Owner(Protocol):
    """Whoever knows which runs may come back."""

    def over(self, runs: Mapping[str, str], since: float) -> AsyncIterator[str]:
        """Those runs that were over at that time, in Unix seconds, and still are. What nobody knows is not over.

        Args:
            runs: With the id of the pool that something of each was made for; empty: unknown.
        """


class Cleaner:
    """Removes what is left of runs that have been over for some days.

    Args:
        find: Each gives what runs have left somewhere; called in a thread.
        needed: Gives the runs that are launched or have a record here.
        owner: Asked about all others, right before something of them is removed.
        days: How long it is kept.
        leads: Whether this worker may decide now.
    """

    def __init__(
        self,
        find: Iterable[Callable[[], Iterable[Leftover]]],
        *,
        needed: Callable[[], Collection[str]],
        owner: Owner,
        days: float,
        leads: Callable[[], bool],
        logger: logging.Logger,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._find = tuple(find)
        self._needed = needed
        self._owner = owner
        self._days = days
        self._leads = leads
        self._logger = logger
        self._clock = clock

    async def run(self, every_s: float = DAY_S) -> None:
        """Clean up now and then again each day, until cancelled."""
        while True:
            try:
                await self.clean_up()
            except Exception as error:  # the next day is another one
                self._logger.warning("What old runs have left could not be removed: %s", error, exc_info=True)
            await asyncio.sleep(every_s)

    async def clean_up(self) -> None:
        """Remove what has not changed for so many days, of runs that have been over for as long."""
        since = self._clock() - self._days * DAY_S
        left: defaultdict[str, list[Leftover]] = defaultdict(list)
        for leftover in await self._look():
            if leftover.changed_at < since:
                left[leftover.run_id].append(leftover)
        for run_id in self._needed():
            left.pop(run_id, None)
        pools = {run_id: max(one.pool for one in some) for run_id, some in left.items()}
        removed = 0
        async for run_id in self._owner.over(pools, since):
            if self._leads() and run_id not in self._needed():  # it may have been started again meanwhile
                removed += await self._remove(left[run_id])
        if removed:
            runs = "1 run" if removed == 1 else f"{removed} runs"
            self._logger.info("Removed what %s had left %g days ago or earlier", runs, self._days)

    async def _look(self) -> list[Leftover]:
        """All that is left, of whatever age. It may be much, and far away: whoever stops does not wait for the rest."""
        stopped = threading.Event()
        every = (leftover for find in self._find for leftover in self._found(find))
        try:
            return await asyncio.to_thread(lambda: list(takewhile(lambda _: not stopped.is_set(), every)))
        finally:
            stopped.set()

    def _found(self, find: Callable[[], Iterable[Leftover]]) -> Iterator[Leftover]:
        """What is left in one place. Another place is looked at whatever becomes of this one."""
        try:
            yield from find()
        except Exception as error:
            self._logger.warning("What old runs have left is not all known: %s", error, exc_info=True)

    async def _remove(self, left: Iterable[Leftover]) -> bool:
        """Remove what a run has left. Returns whether all of it is gone; else the next day is another one."""
        try:
            for one in left:
                await asyncio.to_thread(one.remove)
        except Exception as error:
            self._logger.warning("Not all that run %s has left could be removed: %s", one.run_id, error)
            return False
        return True
