"""The events of a pool, also of one that was deleted and made again."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.events import Event
from prefect.events.filters import EventFilter

from prefect_gpu.worker.server import stream as module
from prefect_gpu.worker.server.stream import PoolStream


class Subscriber:
    """Prefect's, without a server: it has an event of each pool, and then is silent."""

    def __init__(self, filter: EventFilter, reconnection_attempts: int) -> None:
        assert filter.any_resource is not None and filter.any_resource.id is not None
        (self.of,) = filter.any_resource.id
        self.told = False

    async def __aenter__(self) -> Subscriber:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __aiter__(self) -> Subscriber:
        return self

    async def __anext__(self) -> Event:
        if self.told:
            await asyncio.Event().wait()
        self.told = True
        return Event(event="prefect.work-pool.ready", resource={"prefect.resource.id": self.of})


async def test_it_follows_a_pool_that_was_deleted_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run waited for the next poll, until the worker was started anew."""
    monkeypatch.setattr(module, "get_events_subscriber", Subscriber)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    pools, heard, opened = [uuid4(), uuid4()], list[str](), list[UUID]()
    done = asyncio.Event()

    def on_event(event: Any) -> None:
        heard.append(event.resource.id)
        if len(heard) == 1:
            serving.reverse()
        else:
            done.set()

    serving = list(pools)
    stream = PoolStream(
        lambda: serving[0],
        on_event=on_event,
        on_connect=lambda: opened.append(serving[0]),
        logger=logging.getLogger("tests.stream"),
    )
    running = asyncio.create_task(stream.run())
    await asyncio.wait_for(done.wait(), 60)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert heard == [f"prefect.work-pool.{pool}" for pool in pools]
    assert opened == pools and stream.breaks == 0, "whatever was missed in between is asked for"
