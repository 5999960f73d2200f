"""Who leads, of several workers that serve the same nodes: a lease that lives in Prefect.

Prefect has one change that is atomic on every database: occupying slots of a global concurrency limit, which is a
single ``UPDATE ... WHERE active_slots + slots <= limit``; and names of limits are unique. The lease is made of both. (A
limit's own leases last a minute at least, and are forgotten when the server restarts.)

- Each *term* of leadership is a limit of its own. Whoever makes it leads in that term.
- The leader *renews* by occupying one more slot: a number that grows while it lives.
- Who stands by, and has seen the number stand still for longer than a lease lasts, *seals* the term: it occupies all
  slots that were free when it looked. That fails if the leader has renewed since; once it is done, no renewal succeeds.
- Whoever finds a sealed term makes the next one. A leader that leaves seals its own.

A leader counts its time from when it *asked* for its last renewal, and one that stands by from when it *saw* it, each
by its own clock: so the first has stopped before the second begins, whatever their clocks show. A leader that was
frozen finds, before it does anything else, that its time is up (:attr:`Lease.held`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.client.schemas.responses import MinimalConcurrencyLimitResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from pydantic import TypeAdapter

from prefect_gpu.worker.server.run_lists import page_size

LEASE_S = 18.0
"""How long a leader that is not heard of any more leads, seconds. Somebody else does at most 30 s after its death."""
RENEW_S = 3.0
"""From one renewal, or one look of who stands by, to the next, seconds."""

SLOTS = 10**9  # renewals in one term; all numbers stay below 2**31, which is what PostgreSQL's column holds
_NUMBER = re.compile("[0-9]{6,18}")  # of a term, in its limit's name
_MARGIN = 1.1  # for clocks that do not run equally fast
_OVERLAP = 0.25  # of one page and the next


def since_boot() -> float:
    """Seconds that go on while the process is stopped and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Term:
    """A term of leadership, as it was read.

    Attributes:
        number: 1, 2, ...; the newest one counts.
        renewals: How often its leader has renewed it.
        sealed: Whether it is over: it can be renewed no more.
        most: How often it can be renewed at most. Somebody may have changed the limit.
    """

    number: int
    renewals: int
    sealed: bool
    most: int = SLOTS


class Terms(Protocol):
    """Where the terms are kept. Each call is one atomic step there, or fails as a whole."""

    async def newest(self) -> Term | None:
        """The term with the highest number; None: there was none yet."""

    async def make(self, number: int) -> bool:
        """Begin a term. False if it exists."""

    async def occupy(self, number: int, slots: int) -> bool:
        """Add to a term's renewals. False if they would be more than :data:`SLOTS`, or there is no such term."""

    async def forget_before(self, number: int) -> None:
        """Remove all terms before this one."""


class PrefectTerms:
    """Terms as global concurrency limits of a Prefect server.

    Args:
        client: Prefect's client.
        name: What is led: what the limits' names begin with.
    """

    def __init__(self, client: PrefectClient, name: str) -> None:
        self._client = client
        self._prefix = f"{name}, term "

    async def newest(self) -> Term | None:
        """See :class:`Terms`."""
        terms = await self._all()
        return max(terms, key=lambda term: term.number, default=None)

    async def make(self, number: int) -> bool:
        """See :class:`Terms`."""
        limit = GlobalConcurrencyLimitCreate(name=self._name(number), limit=SLOTS, active=True, active_slots=0)
        try:
            await self._client.create_global_concurrency_limit(limit)
        except ObjectAlreadyExists:
            return False
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.CONFLICT:
                return False
            raise
        return True

    async def occupy(self, number: int, slots: int) -> bool:
        """See :class:`Terms`."""
        try:
            answer = await self._client.increment_concurrency_slots([self._name(number)], slots, "concurrency")
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.LOCKED:
                return False
            raise
        # A limit that does not exist is none that is full. What a gateway says of itself is no renewal.
        return bool(TypeAdapter(list[MinimalConcurrencyLimitResponse]).validate_python(answer.json()))

    async def forget_before(self, number: int) -> None:
        """See :class:`Terms`."""
        for term in await self._all():
            if term.number < number:
                with suppress(ObjectNotFound):
                    await self._client.delete_global_concurrency_limit_by_name(self._name(term.number))

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number:06d}"

    async def _all(self) -> list[Term]:
        found: dict[int, Term] = {}
        offset, size = 0, page_size()
        while True:
            page = await self._client.read_global_concurrency_limits(limit=size, offset=offset)
            for limit in page:
                number = limit.name.removeprefix(self._prefix)
                if number != limit.name and _NUMBER.fullmatch(number):  # the others are somebody else's
                    sealed = limit.active_slots >= limit.limit
                    found[int(number)] = Term(int(number), limit.active_slots, sealed, limit.limit)
            if len(page) < size:
                return list(found.values())
            # Some may be deleted meanwhile, and what comes after them moves up.
            offset += max(1, size - int(_OVERLAP * size))


class Lease:
    """The right to decide, which at most one of those who ask for it has at any time.

    Args:
        terms: What is asked for.
        lease_s: How long it is held without a renewal, seconds.
        renew_s: From one renewal or look to the next, seconds.
        clock: Seconds that go on whatever happens to the process; tests may replace it.

    Example:
        >>> lease = Lease(PrefectTerms(client, "prefect-gpu leader of gpus"), logger=logger)    # doctest: +SKIP
        >>> await lease.acquire(lambda: print("standing by"))                                   # doctest: +SKIP
        >>> await lease.keep()  # returns when it is lost                                       # doctest: +SKIP
    """

    def __init__(
        self,
        terms: Terms,
        *,
        lease_s: float = LEASE_S,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = since_boot,
        logger: logging.Logger | None = None,
    ) -> None:
        self._terms = terms
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._clock = clock
        self._logger = logger or logging.getLogger("prefect_gpu.lease")
        self._term: int | None = None  # ours, as far as we know
        self._until = float("-inf")
        self._seen: tuple[int, int] | None = None  # (term, renewals) of somebody else's
        self._seen_at = 0.0
        self._failing = False  # and that was said

    @property
    def held(self) -> bool:
        """Whether we lead now. To be asked before each act that only the leader may do."""
        return self._term is not None and self._clock() < self._until

    async def acquire(self, standing_by: Callable[[], object]) -> None:
        """Wait until we lead. That Prefect does not answer, or refuses, is waited out, and said.

        Args:
            standing_by: Called whenever somebody else leads.
        """
        while True:
            looked = await self._try_step()
            if self.held:
                return
            if looked:
                standing_by()
            await asyncio.sleep(self._renew_s)

    async def keep(self) -> None:
        """Renew it until it is lost; then return. Somebody else may lead already."""
        while self.held:
            await asyncio.sleep(min(self._renew_s, max(0.0, self._until - self._clock())))
            if self.held:
                await self._try_step()

    async def step(self) -> None:
        """One renewal if we lead, else one look at who does. At its end we lead or we do not: see :attr:`held`.

        Raises:
            Exception: Prefect does not answer, refuses, or answers nonsense. Nothing has changed for us then.
        """
        if self._term is not None:
            await self._renew(self._term)
        else:
            await self._stand_by()

    async def release(self) -> None:
        """Lead no more, and let the next one lead at once. If Prefect does not answer, the lease runs out."""
        number, self._term = self._term, None
        if number is None:
            return
        with suppress(Exception):
            newest = await asyncio.wait_for(self._terms.newest(), self._renew_s)
            if newest is not None and newest.number == number and not newest.sealed:
                await asyncio.wait_for(self._terms.occupy(number, newest.most - newest.renewals), self._renew_s)

    async def _try_step(self) -> bool:
        """One step; False if it failed. Whatever the reason: the lease runs out by itself, and the next may succeed."""
        try:
            await asyncio.wait_for(self.step(), self._lease_s / 2)
        except Exception as error:
            absent = isinstance(error, (httpx.TransportError, asyncio.TimeoutError))
            level = logging.DEBUG if absent or self._failing else logging.WARNING  # once until it succeeds again
            self._logger.log(level, "The lease could not be read, and will be tried again: %s", error)
            self._failing = self._failing or not absent
            return False
        self._failing = False
        return True

    async def _renew(self, number: int) -> None:
        asked = self._clock()
        if await self._terms.occupy(number, 1):
            # Nobody has sealed it until now, and so nobody has led beside us, even if our time had run out.
            self._until = asked + self._lease_s
        else:
            self._term = None

    async def _stand_by(self) -> None:
        newest = await self._terms.newest()
        now = self._clock()
        if newest is not None and not newest.sealed:
            seen = (newest.number, newest.renewals)
            if seen != self._seen:
                self._seen, self._seen_at = seen, now
                return
            if now - self._seen_at < self._lease_s * _MARGIN:
                return
            await self._terms.occupy(newest.number, newest.most - newest.renewals)
            newest = await self._terms.newest()  # also when the answer was lost, or somebody has switched the limit off
            if newest is None or not newest.sealed:
                return
        await self._begin(newest.number + 1 if newest is not None else 1)

    async def _begin(self, number: int) -> None:
        asked = self._clock()
        if not await self._terms.make(number):
            return
        # We may have been asleep for so long that this number came and went.
        newest = await self._terms.newest()
        if newest is None or newest.number != number or newest.sealed:
            return
        self._term, self._until, self._seen = number, asked + self._lease_s, None
        with suppress(httpx.HTTPError):
            await self._terms.forget_before(number)
