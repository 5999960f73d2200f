"""Asking Prefect until it answers, and when to believe its answer that something is not there."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import httpx
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.types import KeyValueLabels

if TYPE_CHECKING:  # it needs numpy, and what submits has none
    from prefect_gpu.runtime.launch.launch import Launch

T = TypeVar("T")
NO_ANSWERS = (httpx.HTTPError, ObjectNotFound, json.JSONDecodeError)
"""What asking Prefect ends with while it is away, or hidden behind a gateway that says anything at all."""

_LONGEST_PAUSE_S = 10.0
_NOT_FOUND = 404
# What a gateway or a wrong password says, and not Prefect about a run.
_OF_A_GATEWAY = (401, 403, 407, 408, 421, 425, 429)
_CONFLICT = 409  # another request came between, one that deletes the run, say: the next answer tells what became of it
_FEWEST_LOOKS = 3


class Asking:
    """Asks the Prefect server of one pool. It may be away, or be hidden behind a gateway that says anything at all.

    A gateway without a backend answers 404, and so does a server on an empty or an older database. So "not found" is
    believed only if Prefect says it several times over minutes, is healthy, and has the pool, which must be the same.

    Args:
        pool_id: What the pool's id was when this worker began to serve it.
        believed_after_s: For so long, in seconds, Prefect must say that something is not there.
        clock: Seconds; tests may replace it.
    """

    def __init__(
        self,
        client: PrefectClient,
        pool_name: str,
        pool_id: str,
        logger: logging.Logger,
        *,
        believed_after_s: float = 180.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self._pool_name = pool_name
        self.pool_id = pool_id
        self.believed_after_s = believed_after_s
        self.logger = logger
        self.clock = clock
        self._labelling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def persist(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        pool_id: str = "",
        what: str = "",
        believed_after_s: float | None = None,
    ) -> T:
        """Ask until there is an answer; errors of transport, of the server and of what stands before it are none.

        Args:
            pool_id: Of the pool that what is asked for belongs to; empty: of the one that is served now.
            what: It, for the log.
            believed_after_s: Instead of the usual time.

        Raises:
            ObjectNotFound: It is not there, which is believed by now.
            httpx.HTTPStatusError: Prefect refuses the request.
        """
        pause, absence = 0.5, self.absence(pool_id, what, believed_after_s)
        while True:
            try:
                return await ask()
            except (ObjectNotFound, httpx.HTTPStatusError) as error:
                refused = error.http_exc if isinstance(error, ObjectNotFound) else error
                status = refused.response.status_code if isinstance(refused, httpx.HTTPStatusError) else _NOT_FOUND
                if status == _NOT_FOUND:
                    if await absence.is_believed():
                        raise (error if isinstance(error, ObjectNotFound) else ObjectNotFound(error)) from None
                else:
                    absence.doubt()
                    if status < 500 and status not in (*_OF_A_GATEWAY, _CONFLICT):
                        raise
                self.logger.debug("Prefect answered %s; asking again", status)
            except (httpx.RequestError, json.JSONDecodeError) as error:
                absence.doubt()
                self.logger.debug("Prefect does not answer (%r); asking again", error)
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    async def persist_of(self, run: Launch, ask: Callable[[], Awaitable[T]]) -> T:
        """:meth:`persist`, of a launched run. That it was deleted is believed once: it holds its devices meanwhile.

        Raises:
            ObjectNotFound: It was deleted.
            httpx.HTTPStatusError: Prefect refuses the request.
        """
        if run.deleted:
            raise ObjectNotFound(LookupError(run.run_id))
        pool_id, what = str(run.record.known.get("pool_id", "")), f"run {run.record.name} ({run.run_id})"
        try:
            return await self.persist(ask, pool_id=pool_id, what=what)
        except ObjectNotFound:
            run.deleted = True
            raise

    async def label(self, run_id: str, labels: KeyValueLabels) -> None:
        """Add labels to a run, once: the caller says what follows if Prefect does not answer.

        Prefect's server reads a run's labels and writes them all. On PostgreSQL two requests at once lose the labels
        of one, so a worker makes those of a run one after the other.

        Raises:
            ObjectNotFound: Prefect says that there is no such run.
            httpx.HTTPError: There is no answer.
        """
        async with self._labelling.setdefault(run_id, asyncio.Lock()):
            await self.client.update_flow_run_labels(UUID(run_id), labels)

    def absence(self, pool_id: str = "", what: str = "", believed_after_s: float | None = None) -> Absence:
        """Of something that Prefect may say is not there; the arguments are those of :meth:`persist`."""
        after_s = self.believed_after_s if believed_after_s is None else believed_after_s
        return Absence(self, pool_id or self.pool_id, what, after_s)

    async def is_well(self) -> bool:
        """Whether Prefect answers healthily, and has the pool that is served."""
        try:
            unhealthy = await self.client.api_healthcheck()
            return unhealthy is None and str((await self.client.read_work_pool(self._pool_name)).id) == self.pool_id
        except Exception as error:
            self.logger.debug("Prefect is not well: %r", error)
            return False


class Absence:
    """Of one thing: how often Prefect has said so, and since when."""

    def __init__(self, asking: Asking, pool_id: str, what: str, after_s: float) -> None:
        self._asking = asking
        self._pool_id = pool_id
        self._what = what
        self._after_s = after_s
        self._since: float | None = None
        self._looks = 0

    async def is_believed(self) -> bool:
        """Whether it is believed, now that Prefect has said so once more."""
        self._say()
        if self._pool_id != self._asking.pool_id or not await self._asking.is_well():
            self.doubt()
            return False
        now = self._asking.clock()
        self._since = now if self._since is None else self._since
        self._looks += 1
        return self._looks >= _FEWEST_LOOKS and now - self._since >= self._after_s

    def doubt(self) -> None:
        """Prefect is not well: what it said does not count."""
        self._since, self._looks = None, 0

    def _say(self) -> None:
        what, self._what = self._what, ""
        if what and self._pool_id == self._asking.pool_id:
            self._asking.logger.warning(
                "Prefect has no %s. This is believed once it has said so for %g s, healthy and with the same pool.",
                what,
                self._after_s,
            )
        elif what:
            self._asking.logger.warning(
                "Prefect has no %s, nor its pool, whose id was %s: the database seems to be another one. Nothing of "
                "the run is touched until both are back. If they are lost for good, stop the worker, and remove the "
                "run's folder in `runs` in the state folder.",
                what,
                self._pool_id,
            )
