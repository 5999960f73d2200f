"""Prefect's event stream: what happens in the pool is learned at once, and missed events are made up for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from uuid import UUID

from prefect.events import Event
from prefect.events.clients import get_events_subscriber
from prefect.events.filters import EventAnyResourceFilter, EventFilter, EventNameFilter

_PREFIXES = ["prefect.flow-run.", "prefect.work-pool.", "prefect.work-queue."]
_LONGEST_PAUSE_S = 10.0
_LOOK_S = 1.0  # whether the pool is another one


class PoolStream:
    """Listens to the events of one work pool, for as long as the worker lives.

    Args:
        pool_id: The pool's id now. A pool that was deleted and made again has another one, and the stream follows it.
        on_event: Called for each event.
        on_connect: Called whenever the stream is (again) open: events may have been missed until then.
    """

    def __init__(
        self,
        pool_id: Callable[[], UUID],
        *,
        on_event: Callable[[Event], None],
        on_connect: Callable[[], None],
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._pool_id = pool_id
        self._on_event = on_event
        self._on_connect = on_connect
        self._logger = logger
        self.breaks = 0  # how often the stream broke: a sign that the API was away

    async def run(self) -> None:
        """Listen until cancelled. While the stream is broken the worker's polling carries on alone."""
        pause = 0.5
        while True:
            pool_id = self._pool_id()
            try:
                subscription = EventFilter(
                    event=EventNameFilter(prefix=_PREFIXES),
                    any_resource=EventAnyResourceFilter(id=[f"prefect.work-pool.{pool_id}"]),
                )
                async with get_events_subscriber(filter=subscription, reconnection_attempts=0) as events:
                    self._on_connect()
                    if self.breaks:
                        self._logger.info("Prefect's event stream is back.")
                    pause = 0.5
                    await self._hear(events, pool_id)
                if self._pool_id() != pool_id:
                    continue
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._logger.debug("Event stream: %r", error)
            self.breaks += 1
            if pause == 0.5:
                self._logger.warning("Prefect's event stream is closed; polling until it is back.")
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)

    async def _hear(self, events: AsyncIterator[Event], pool_id: UUID) -> None:
        """Until the stream ends, or the pool is another one."""
        coming: asyncio.Future[Event] | None = None
        try:
            while self._pool_id() == pool_id:
                coming = coming or asyncio.ensure_future(_next_of(events))
                await asyncio.wait({coming}, timeout=_LOOK_S)
                if coming.done():
                    event, coming = coming.result(), None
                    self._on_event(event)
        except StopAsyncIteration:
            return
        finally:
            if coming is not None:
                coming.cancel()


async def _next_of(events: AsyncIterator[Event]) -> Event:
    return await anext(events)
