"""What is only shown is written for a part of the time, and gives way to runs that are submitted, started and ended."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from benchmarks._host.waiting import until
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.worker.queue import holds
from prefect_gpu.worker.queue.holds import Holds
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.queue.queue_sync import QueueSync
from prefect_gpu.worker.server.lane import CREDIT_S, LONGEST_S, QUIET_AFTER_MANY_S, QUIET_S, SHARE, Lane
from tests.worker.prefect_stand_in import LOGGER, OneRun


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def write(lane: Lane, clock: Clock, seconds: float) -> None:
    async with lane.budgeted():
        clock.now += seconds


async def test_writing_takes_a_share_of_the_time_however_slow_the_server_is() -> None:
    clock = Clock()
    lane = Lane(clock)
    written_s = 0.0
    for _ in range(1000):
        clock.now += 1.0
        if lane.lets_through():
            await write(lane, clock, 0.7)
            written_s += 0.7
    assert written_s <= CREDIT_S + SHARE * (clock.now - 100.0) + 0.7
    assert written_s >= SHARE * 1000.0 * 0.9


async def test_what_waiting_runs_show_gives_way_to_submissions_but_not_for_ever() -> None:
    clock = Clock()
    lane = Lane(clock)
    assert lane.lets_through()
    lane.submission()
    assert not lane.lets_through()
    clock.now += QUIET_S + 0.1
    assert lane.lets_through(), "one run is shown soon"
    for _ in range(4):
        lane.submission()
        clock.now += 0.1
    clock.now += 2.0
    assert lane.lets_through(), "so are a few"
    through = 0
    for _ in range(round(3.5 * LONGEST_S)):
        lane.submission()
        clock.now += 1.0
        through += lane.lets_through()
    assert through == 3
    clock.now += QUIET_AFTER_MANY_S
    assert lane.lets_through()


async def test_what_can_wait_gives_way_to_a_run_that_is_started() -> None:
    lane = Lane(Clock())
    with lane.urgent(), contextlib.suppress(ValueError):
        with lane.urgent():
            raise ValueError
        assert not lane.is_free
    assert lane.is_free


async def test_of_many_waiting_runs_few_are_shown_at_once_and_the_first_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forty runs wait in front of a server that takes half a second for each: the others wait for the budget.

    What the server does not take is not forgotten.
    """
    clock, scheduler = Clock(), Scheduler()
    runs = [OneRun() for _ in range(40)]
    worker: Any = SimpleNamespace(client=None, name="w")
    nothing: Any = None
    lane = Lane(clock)
    intake = Intake(worker, nothing, nothing, nothing, cancel=nothing, suspend=nothing, logger=LOGGER)
    queue = QueueSync(worker, nothing, nothing, intake, lane=lane, logger=LOGGER)
    display = Holds(worker, queue, intake, lane, LOGGER)
    intake.controller = display.controller = nothing or SimpleNamespace(
        runs={}, scheduler=scheduler, away={}, coming=lambda job: None
    )
    for number, run in enumerate(runs):
        scheduler.handle(ev.JobSubmitted(run.run_id, Request(), "q", float(number), 0.0), clock.now)
        intake._seen[run.run_id].flow_run = run.as_read()
    shown: list[str] = []
    lost = iter([httpx.ConnectError("it is away")] * 3)

    async def show(_: object, run_id: Any, *__: object) -> bool:
        for error in lost:
            raise error
        shown.append(str(run_id))
        clock.now += 0.5
        return True

    monkeypatch.setattr(holds, "show_waiting", show)
    monkeypatch.setattr(holds, "_SHOW_WAITING_AFTER_S", 0.0)
    worker.get_flow_run_logger = lambda _: SimpleNamespace(info=lambda *_: None)
    for run in reversed(runs):
        display.held(Hold(run.run_id, "devices", "all are in use"))
    with lane.urgent():
        showing = asyncio.create_task(display.run())
        await until_it_waits(display, runs[0].run_id)
        assert shown == []
    await until(lambda: not lane.is_free, "the end of the budget", every_s=0.0)
    await until_it_waits(display, runs[0].run_id)
    assert shown == [run.run_id for run in runs[: len(shown)]] and len(shown) <= CREDIT_S / 0.5 + 1
    showing.cancel()


async def until_it_waits(display: Holds, run_id: str) -> None:
    """Long enough for the forecast, and for more than the budget allows."""
    await until(lambda: display.expected(run_id), "a forecast", every_s=0.001)
    for _ in range(200):
        await asyncio.sleep(0)
