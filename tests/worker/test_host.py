"""What the worker writes of a launch does not stand in the way of the flow's first line, and is not lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from prefect_gpu.training import protocol
from prefect_gpu.worker.host import PrefectHost, _Prepared
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.telling.display import RunDisplay
from tests.runtime.launches import launched
from tests.worker.prefect_stand_in import asking


async def test_a_launch_is_written_down_once_the_flow_has_begun_and_prefect_answers() -> None:
    written: list[str] = []
    away = [httpx.ReadTimeout("Prefect does not answer")]

    async def update_flow_run(_: object, infrastructure_pid: str) -> None:
        if away:
            raise away.pop()
        written.append(infrastructure_pid)

    async def labels(_: object, __: object) -> None:
        written.append("labels")

    run = launched("0190d0e2-7a6b-7c9e-8f10-0a1b2c3d4e5f")
    run.attach(_Prepared(breaks=0))
    host = cast(Any, object.__new__(PrefectHost))
    host.intake = SimpleNamespace(flow_run=lambda _: None)
    host.controller = SimpleNamespace(runs={run.run_id: run})
    host.lane, host._client = Lane(), SimpleNamespace(update_flow_run=update_flow_run, update_flow_run_labels=labels)
    host._events, host.asking = SimpleNamespace(labels={}), asking(host._client)
    host._host_prefix, host._show = "here:", lambda _: SimpleNamespace(wake=lambda: None)
    announcing = asyncio.create_task(host._announce(run, 7))
    for _ in range(20):
        await asyncio.sleep(0)
    assert written == []
    host.reported(run, protocol.PHASE)
    await announcing
    assert written == ["here:7", "labels"]


async def test_a_suspension_that_prefect_did_not_let_be_taken_back_may_be_asked_for_again() -> None:
    run, host = launched("0190d0e2-7a6b-7c9e-8f10-0a1b2c3d4e5f"), cast(Any, object.__new__(PrefectHost))

    async def persist(_: object) -> bool:
        raise httpx.HTTPStatusError("403", request=cast(Any, None), response=cast(Any, None))

    host.asking, run.suspending = SimpleNamespace(persist=persist), True
    with pytest.raises(httpx.HTTPStatusError):
        await host._refuse_to_suspend(run, None)
    assert not run.suspending


async def test_a_gang_that_reports_before_all_of_it_has_begun_is_shown_once() -> None:
    """The second display would never be closed: its task would be left for ever."""
    run = launched("0190d0e2-7a6b-7c9e-8f10-0a1b2c3d4e5f")
    run.handle = cast(Any, SimpleNamespace(pid=7))
    host, nothing = cast(Any, object.__new__(PrefectHost)), cast(Any, None)
    host._events, host._client, host.lane = SimpleNamespace(submitted=lambda _: None), nothing, Lane()
    host.logger, host.page_url, host.tasks = nothing, "", SimpleNamespace(start=lambda work: work.close())
    host.controller = SimpleNamespace(estimates=nothing)
    host.reported(run, protocol.PROGRESS)
    await host.launched(run)
    displays = [one for one in run.followers if isinstance(one, RunDisplay)]
    for one in displays:
        await one.leave()
    assert len(displays) == 1
