"""What owners of waiting runs read, and how seldom it is written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.states import Pending, Scheduled

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.forecast import Outlook
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.worker.queue import holds
from prefect_gpu.worker.queue.holds import Holds
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.queue.queue_sync import QueueSync
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.telling import expectations
from prefect_gpu.worker.telling.expectations import TOLD_TIMES, Expectations, Shown, at_gate, message, worth_saying
from tests.worker.prefect_stand_in import LOGGER, OneRun

NOON = 1_700_000_000.0 // 86400 * 86400 + 12 * 3600
CET = timezone(timedelta(hours=1), "CET")
BUSY = "it needs 1 device on one node, and 1 of 1 is in use"


@pytest.mark.parametrize(
    ("outlook", "expected"),
    [
        (None, ""),
        (Outlook(None, None, BUSY), ""),
        (
            Outlook(None, None, "the end of a cannot be predicted"),
            " Its start is unknown: the end of a cannot be predicted.",
        ),
        (
            Outlook(NOON + 240, NOON + 500, ""),
            " Expected to start at 13:04:00 CET (in about 4 min) and to end at 13:08:20.",
        ),
        (
            Outlook(NOON + 4000, NOON + 86400, ""),
            " Expected to start at 14:06 CET (in about 67 min) and to end at 2023-11-15 13:00.",
        ),
        (
            Outlook(NOON + 40, None, ""),
            " Expected to start at 13:00:40 CET (in about 40 s); its end is unknown.",
        ),
        (
            Outlook(NOON + 0.5, NOON + 9, ""),
            " Expected to start at 13:00:00 CET (at any moment) and to end at 13:00:09.",
        ),
        (Outlook(NOON + 9, NOON + 99, "", TOLD_TIMES + 13), " About 30 waiting runs come first."),
        (Outlook(None, None, "more than 200 runs come first", 234), " About 230 waiting runs come first."),
        (
            Outlook(NOON + 240, NOON + 300, "", first_at=NOON + 3600),
            " Expected to start at 13:04:00 CET (in about 4 min) and to end at 13:05:00. "
            "Others may overtake it until 14:00 CET.",
        ),
        (Outlook(None, None, BUSY, first_at=NOON - 1), " It is late, and may be overtaken no more."),
    ],
)
def test_what_an_owner_reads(outlook: Outlook | None, expected: str) -> None:
    assert message(BUSY, outlook, NOON, CET) == "It needs 1 device on one node, and 1 of 1 is in use." + expected


@pytest.mark.parametrize(
    ("after_s", "now_expected", "told"),
    [
        (60.0, Outlook(NOON + 1000, NOON + 2000, ""), False),
        (60.0, Outlook(NOON + 1160, NOON + 2160, ""), False),  # within a fifth of the wait that is left
        (60.0, Outlook(NOON + 1300, NOON + 2300, ""), True),
        (60.0, Outlook(NOON + 700, NOON + 2000, ""), True),
        (60.0, Outlook(NOON + 1000, NOON + 2600, ""), True),  # only the end has moved
        (9.0, Outlook(NOON + 5000, NOON + 6000, ""), False),  # too soon after the last message
        (999.0, Outlook(NOON + 1004, NOON + 2004, ""), False),  # a few seconds, however near
        (999.0, Outlook(NOON + 1008, NOON + 2008, ""), True),
        (60.0, Outlook(NOON + 1000, None, ""), True),
        (60.0, Outlook(None, None, "the end of a cannot be predicted"), True),
        (60.0, Outlook(NOON + 5000, NOON + 6000, "", TOLD_TIMES), False),
        (60.0, None, False),
    ],
)
def test_when_an_owner_is_told_anew(after_s: float, now_expected: Outlook | None, told: bool) -> None:
    shown = Shown(BUSY, Outlook(NOON + 1000, NOON + 2000, ""), NOON)
    assert worth_saying(shown, now_expected, NOON + after_s) is told


def test_what_is_told_of_a_place_in_the_queue() -> None:
    far = Shown(BUSY, Outlook(None, None, "", 100), NOON)
    assert not worth_saying(far, Outlook(None, None, "", 51), NOON + 60)
    assert worth_saying(far, Outlook(None, None, "", 50), NOON + 60)
    assert worth_saying(far, Outlook(NOON + 99, NOON + 199, "", TOLD_TIMES - 1), NOON + 60)
    unknown = Shown(BUSY, Outlook(None, None, "the end of a cannot be predicted"), NOON)
    other = Outlook(None, None, "the end of b cannot be predicted")
    assert [worth_saying(unknown, other, NOON + after_s) for after_s in (30.0, 90.0)] == [False, True]
    assert worth_saying(replace(unknown, outlook=None), other, NOON), "the first forecast is told at once"


@given(st.floats(1, 5000), st.integers(1, 40), st.floats(1, 30))
def test_whoever_waits_for_a_run_that_never_ends_is_told_less_and_less_often(
    estimated_s: float, hours: int, step_s: float
) -> None:
    """The end of a run that is over its time is expected as late again as it is over."""
    now, told = NOON, 0
    shown = Shown(BUSY, Outlook(NOON + estimated_s, None, ""), NOON)
    while now < NOON + hours * 3600:
        now += step_s * (1 + (now - NOON) / 100)
        outlook = Outlook(max(NOON + estimated_s, 2 * now - NOON - estimated_s), None, "")
        if worth_saying(shown, outlook, now):
            shown, told = Shown(BUSY, outlook, now), told + 1
    assert told <= 3 + 20 * len(str(int(hours * 3600)))


# -- in the worker ----------------------------------------------------------------------------------------------------


def one_device(*jobs: str, at: float) -> Scheduler:
    """A scheduler of one device, on which these jobs of 100 s follow each other."""
    scheduler = Scheduler("fifo")
    scheduler.handle(ev.NodesChanged((Node("n", (Device("virtual-0", "virtual", 8, True),), ()),)), at)
    for job in jobs:
        scheduler.handle(ev.JobSubmitted(job, Request(), "q", at, at, job, Estimate(100.0)), at)
    scheduler.handle(ev.PhaseEntered(jobs[0], Status.TRAINING), at)
    return scheduler


async def test_a_forecast_that_fails_is_reported_and_nothing_is_expected(caplog: pytest.LogCaptureFixture) -> None:
    expected = Expectations(logging.getLogger("tests.expectations"))
    broken: Any = SimpleNamespace(
        profile=SimpleNamespace(name="no profile"), abilities=None, state=SimpleNamespace(quotas=Quotas(), nodes={})
    )
    await expected.refresh(broken)
    assert "cannot be forecast" in caplog.text
    assert expected.of("a") is None


async def test_a_new_run_is_not_told_the_forecast_of_before_it_came() -> None:
    expected = Expectations(LOGGER)
    scheduler = one_device("a", "b", at=NOON)
    await expected.refresh(scheduler, "b")
    scheduler.handle(ev.JobSubmitted("c", Request(), "q", NOON, NOON, "c", Estimate(1.0)), NOON)
    await expected.refresh(scheduler)
    assert expected.of("b") is not None and expected.of("c") is None, "the last look was just now"
    await asyncio.sleep(0.01)
    while expected.of("c") is None:
        await expected.refresh(scheduler, "c")


class Waits:
    """A queue with one run that waits behind another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefect = OneRun(Scheduled())
        self.prefect.states.pop(0)
        self.run_id = self.prefect.run_id
        self.now = NOON
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=lambda: 0.0)
        monkeypatch.setattr(expectations, "time", clock)
        for module in (expectations, holds):
            monkeypatch.setattr(module, "CLOCK", Clock(lambda: self.now, lambda: self.now))
        self.scheduler = one_device("first", self.run_id, at=NOON)
        logged = SimpleNamespace(info=lambda *_: None)
        worker: Any = SimpleNamespace(client=self.prefect, name="w", get_flow_run_logger=lambda _: logged)
        nothing: Any = None
        self.intake = Intake(worker, nothing, nothing, nothing, cancel=nothing, suspend=nothing, logger=LOGGER)
        queue = QueueSync(worker, nothing, nothing, self.intake, lane=Lane(), logger=LOGGER)
        self.holds = Holds(worker, queue, self.intake, Lane(), LOGGER)
        self.intake.controller = self.holds.controller = nothing or SimpleNamespace(
            runs={}, scheduler=self.scheduler, coming=lambda job: None
        )
        self.intake._seen[self.run_id].flow_run = self.prefect.as_read()

    async def look(self) -> None:
        """What the worker does every now and then."""
        await self.holds._look_ahead()
        for run_id, reason in self.holds._with_news():
            await self.holds._write(run_id, reason)

    @property
    def messages(self) -> list[str]:
        return [state.message or "" for state in self.prefect.states if state.name == "AwaitingGpu"]


async def test_a_waiting_run_is_shown_again_when_its_start_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", BUSY))
    assert len(waits.messages) == 1 and "(in about 2 min)" in waits.messages[0]
    waits.now += 30
    await waits.look()
    assert len(waits.messages) == 1, "everything goes as expected"
    waits.scheduler.handle(ev.JobEstimated("first", Estimate(500.0)), waits.now)
    waits.now += 4
    await waits.look()
    assert len(waits.messages) == 2 and "(in about 8 min)" in waits.messages[1]


async def test_a_queue_that_is_resumed_is_no_longer_said_to_be_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    paused = Quotas((Queue("q", "urgent", paused=True),))
    waits.scheduler.handle(ev.QuotasChanged(paused), waits.now)
    why = "the work queue 'urgent' is paused"
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "queue-paused", why))
    waits.now += 1
    waits.scheduler.handle(ev.QuotasChanged(Quotas((Queue("q", "urgent"),))), waits.now)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", BUSY))
    assert "paused" in waits.messages[0] and "Expected to start" in waits.messages[1], waits.messages


async def test_a_device_that_is_back_is_no_longer_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    nodes = tuple(waits.scheduler.state.nodes.values())
    waits.scheduler.handle(ev.NodesChanged(()), waits.now)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", "no available node can hold it"))
    waits.now += 1
    waits.scheduler.handle(ev.NodesChanged(nodes), waits.now)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", BUSY))
    assert "no available node" in waits.messages[0].lower() and "Expected to start" in waits.messages[1], waits.messages


async def test_a_run_that_gave_way_is_not_told_when_it_was_to_start_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It read "Expected to start at 19:46:34 (at any moment)" at 19:46:42, and for another 20 seconds."""
    waits = Waits(monkeypatch)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", BUSY))
    waits.now += 1
    waits.scheduler.handle(ev.JobEnded("first", "completed"), waits.now)
    waits.scheduler.handle(ev.JobSubmitted("other", Request(), "q", NOON - 1, NOON, "", Estimate(1000.0)), waits.now)
    waits.now += 1
    waits.scheduler.handle(ev.JobStopped(waits.run_id), waits.now)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", f"{BUSY} again"))
    assert "(in about 17 min)" in waits.messages[1], waits.messages


async def test_a_run_that_is_being_started_is_not_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    await waits.holds._show(waits.run_id, Hold(waits.run_id, "devices", BUSY))
    waits.now += 30
    waits.scheduler.handle(ev.JobEstimated("first", Estimate(500.0)), waits.now)
    await waits.holds._look_ahead()
    [news] = waits.holds._with_news()
    async with waits.intake.lock(waits.run_id):  # whoever claims it holds this
        renaming = asyncio.create_task(waits.holds._write(*news))
        await asyncio.sleep(0)
        waits.scheduler.handle(ev.JobEnded("first", "completed"), waits.now)  # so the other one is launched
        waits.prefect.states.append(Pending())
    await renaming
    assert waits.prefect.shown[0] == "pending" and len(waits.messages) == 1


@pytest.mark.parametrize(
    ("ahead", "ends_at", "expected"),
    [
        (None, None, "Prepared. It trains as soon as its devices are free."),
        ("owl", None, "Prepared. It trains when owl has stopped training."),
        (
            "owl",
            NOON + 20,
            "Prepared. It trains when owl has stopped training: expected at 13:00:20 CET (in about 20 s).",
        ),
        (
            "owl",
            NOON - 20,
            "Prepared. It trains when owl has stopped training: expected at 13:00:00 CET (at any moment).",
        ),
    ],
)
def test_the_owner_of_a_prepared_run_reads_what_it_waits_for(
    ahead: str | None, ends_at: float | None, expected: str
) -> None:
    assert at_gate(ahead, ends_at, NOON, CET) == expected
