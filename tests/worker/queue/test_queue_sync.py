"""What is read of a run may be older than what the worker knows by the time that it is taken in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID, uuid4

import httpx
import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.events import Event
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Completed, Running, Scheduled, Suspended

from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.drivers.base import Coming
from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.worker.endings.orphans import Orphans
from prefect_gpu.worker.queue.holds import Holds
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.queue.queue_sync import QueueSync
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.server_clock import ServerClock
from tests.worker.prefect_stand_in import HOST_PREFIX, LOGGER, OneRun, asking


def an_intake(prefect: OneRun) -> Intake:
    async def cancel(run: object) -> None:
        raise AssertionError("it is not launched")

    worker: Any = SimpleNamespace(client=prefect, name="w")
    view: Any = None
    ask = asking(prefect)
    orphans = Orphans(ask, HOST_PREFIX)
    intake = Intake(worker, view, ask, orphans, cancel=cancel, suspend=lambda run, flow_run: None, logger=LOGGER)
    capability = SimpleNamespace(may_hold=lambda request: True)
    scheduler = SimpleNamespace(state=SimpleNamespace(jobs={}, capability=capability))
    intake.controller = cast(Any, SimpleNamespace(runs={}, scheduler=scheduler, estimates=Estimates()))
    return intake


def a_queue(intake: Intake) -> QueueSync:
    return QueueSync(intake._worker, intake._pool, intake._asking, intake, lane=Lane(), logger=LOGGER)


async def test_a_cancellation_that_nobody_else_can_finish_is_finished() -> None:
    prefect = OneRun(Running(), Cancelling())
    await an_intake(prefect).take_in(prefect.as_read(), time.time())
    assert prefect.shown[0] == "cancelled"


async def test_a_run_that_was_settled_since_it_was_read_keeps_its_end() -> None:
    prefect = OneRun(Running(), Cancelling())
    read, read_at = prefect.as_read(), time.time()
    intake = an_intake(prefect)
    prefect.states += [Cancelled(), Running(), Completed()]  # run again by its user, and completed
    intake.finalised(prefect.run_id)
    await intake.take_in(read, read_at)
    assert prefect.shown[0] == "completed"


class Reading:
    """An intake whose flows a test can let come late.

    Attributes:
        told: What the scheduler was told.
        cancelled: The launches that were cancelled.
    """

    def __init__(self, prefect: OneRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.intake, self.told, self.cancelled = an_intake(prefect), list[ev.Event](), list[object]()
        self.late = asyncio.Event()
        self.late.set()

        async def flow(_: object) -> Any:
            await self.late.wait()
            return SimpleNamespace(name="train")

        async def cancel(run: object) -> None:
            self.cancelled.append(run)

        pool: Any = SimpleNamespace(serves=lambda _: True, flow=flow, clock=ServerClock())
        controller: Any = self.intake.controller
        controller.fleet, controller.handle = Fleet(()), self.told.append
        monkeypatch.setattr(self.intake, "_pool", pool)
        monkeypatch.setattr(self.intake, "_cancel", cancel)
        monkeypatch.setattr(self.intake._worker, "work_pool", SimpleNamespace(base_job_template={}), raising=False)


async def test_a_run_that_came_back_since_it_was_read_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look has read it as it was cancelled. Its user has let it run again, and news of that was quicker."""
    prefect = OneRun(Running(), Cancelling())
    reading, read_at, before = Reading(prefect, monkeypatch), time.time(), prefect.as_read()
    prefect.states += [Cancelled(), Scheduled()]
    await reading.intake.take_in(prefect.as_read(), read_at + 1.0)
    assert len(reading.told) == 1
    reading.intake.controller.runs[prefect.run_id] = prefect.launch()
    await reading.intake.take_in(before, read_at)
    assert not reading.cancelled
    prefect.states.append(Cancelling())
    await reading.intake.take_in(prefect.as_read(), read_at + 2.0)
    assert len(reading.cancelled) == 1


async def test_a_run_that_is_cancelled_while_it_is_taken_in_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    prefect = OneRun(Scheduled())
    reading, read_at = Reading(prefect, monkeypatch), time.time()
    reading.late.clear()
    looking = asyncio.create_task(reading.intake.take_in(prefect.as_read(), read_at))
    await asyncio.sleep(0)
    prefect.states.append(Cancelled())
    await reading.intake.take_in(prefect.as_read(), read_at + 1.0)
    reading.late.set()
    await looking
    assert not reading.told and not reading.intake.seen


async def test_a_waiting_run_is_read_again_when_it_may_share_by_what_was_learned() -> None:
    intake = an_intake(OneRun(Scheduled()))
    jobs = {
        "learned": Job("learned", Request(automatic=True), "q", 0.0, 0.0),
        "half": Job("half", Request(automatic=True), "q", 0.0, 0.0),
        "never": Job("never", Request(), "q", 0.0, 0.0),
        "shares": Job("shares", Request(automatic=True, exclusive=False, gpu_memory_bytes=1), "q", 0.0, 0.0),
    }
    intake.controller.scheduler.state.jobs.update(jobs)
    known = Estimate(memory_bytes=2, utilisation=0.5)
    news = [ev.JobEstimated(name, known) for name in ("learned", "never", "shares", "gone")]
    queue = a_queue(intake)
    queue.estimated([*news, ev.JobEstimated("half", Estimate(memory_bytes=2))])
    assert queue._doubtful == {"learned"}


async def test_a_run_shares_by_its_estimate_until_it_has_run_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    prefect = OneRun(Scheduled())
    intake = an_intake(prefect)
    told: list[Any] = []
    controller: Any = intake.controller
    controller.handle = told.append
    controller.fleet = Fleet()
    estimate = Estimate(memory_bytes=2, utilisation=0.5)
    monkeypatch.setattr(controller.estimates, "submitted", lambda *_, **__: estimate)
    monkeypatch.setattr("prefect_gpu.worker.queue.intake.read_request", lambda *_, **__: Request(automatic=True))

    async def flow(_: object) -> Any:
        return SimpleNamespace(name="train")

    async def deployment(_: object) -> None:
        return None

    intake._pool = cast(
        Any, SimpleNamespace(flow=flow, deployment=deployment, clock=ServerClock(), serves=lambda _: True)
    )
    intake._worker = cast(Any, SimpleNamespace(work_pool=None))
    await intake.take_in(prefect.as_read(), time.time())
    intake.exhausted(prefect.run_id)
    await intake.take_in(prefect.as_read(), time.time())
    shares = Request(automatic=True, exclusive=False, gpu_memory_bytes=2, kind="train")
    assert [event.request for event in told] == [shares, Request(kind="train")]


async def test_a_run_that_cannot_be_taken_in_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    prefect = OneRun(Scheduled())
    intake = an_intake(prefect)
    told: list[Any] = []
    controller: Any = intake.controller
    controller.handle, controller.fleet = told.append, Fleet()
    answers: list[Any] = [ValueError("an answer that was cut off"), SimpleNamespace(name="train")]

    async def flow(_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def deployment(_: object) -> None:
        return None

    template: dict[str, Any] = {"variables": {"properties": {}}, "job_configuration": {}}
    intake._pool = cast(
        Any, SimpleNamespace(flow=flow, deployment=deployment, clock=ServerClock(), serves=lambda _: True)
    )
    intake._worker = cast(Any, SimpleNamespace(work_pool=SimpleNamespace(base_job_template=template)))
    await intake.take_in(prefect.as_read(), time.time())
    assert not told and "could not be taken in" in caplog.text
    await intake.take_in(prefect.as_read(), time.time())
    assert [event.job for event in told] == [prefect.run_id]


async def test_a_deployment_that_is_missed_now_and_then_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that is restarted may say 404 once. In the days that a run waits, that may happen three times."""
    prefect = OneRun(Scheduled())
    prefect.run = prefect.run.model_copy(update={"deployment_id": uuid4()})
    intake, missed, now = an_intake(prefect), [False], [0.0]
    controller: Any = intake.controller
    controller.handle, controller.fleet = lambda event: None, Fleet()
    intake._asking.clock, intake._asking.believed_after_s = lambda: now[0], 180.0
    monkeypatch.setattr("prefect_gpu.worker.queue.intake.read_request", lambda *_, **__: Request())

    async def flow(_: object) -> Any:
        return SimpleNamespace(name="train")

    async def deployment(_: object) -> None:
        if missed[0]:
            raise ObjectNotFound(Exception("404"))

    intake._pool = cast(
        Any, SimpleNamespace(flow=flow, deployment=deployment, clock=ServerClock(), serves=lambda _: True)
    )
    intake._worker = cast(Any, SimpleNamespace(work_pool=None))
    for _ in range(4):
        for missed[0] in (False, True):
            await intake.take_in(prefect.as_read(), time.time())
        now[0] += 86_400.0
    assert prefect.shown[0] == "scheduled"
    for _ in range(3):
        await intake.take_in(prefect.as_read(), time.time())
        now[0] += 100.0
    assert prefect.shown[0] == "cancelled", "it was deleted"


async def test_of_a_run_that_is_not_ours_to_start_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was refused, or its deadline was, or another worker has it, or it could not be configured once granted."""
    prefect = OneRun(Scheduled())
    intake = an_intake(prefect)
    controller, jobs = cast(Any, intake.controller), intake.controller.scheduler.state.jobs
    controller.fleet = Fleet()
    controller.handle = lambda event: jobs.update({event.job: Job(event.job, event.request, "q", 0.0, 0.0)})

    async def flow(_: object) -> Any:
        return SimpleNamespace(name="train")

    intake._pool = cast(Any, SimpleNamespace(flow=flow, clock=ServerClock(), serves=lambda _: True))
    template: dict[str, Any] = {"variables": {"properties": {}}, "job_configuration": {"gpus": "{{ gpus }}"}}
    intake._worker = cast(Any, SimpleNamespace(work_pool=SimpleNamespace(base_job_template=template)))
    prefect.run = prefect.run.model_copy(update={"job_variables": {"gpus": -1}})
    await intake.take_in(prefect.as_read(), time.time())
    intake.tidy(time.time(), ())
    assert prefect.shown[0] == "crashed" and not intake.seen
    prefect.run = prefect.run.model_copy(update={"job_variables": {"gpus": 1}})
    prefect.states.append(Scheduled())
    await intake.take_in(prefect.as_read(), time.time())
    intake.tidy(time.time(), ())
    assert intake.flow_run(prefect.run_id) is not None
    jobs.clear()  # it was granted, and another worker's claim came first
    intake.tidy(time.time(), ())
    assert not intake.seen and not controller.estimates._runs


async def test_a_run_is_not_refused_for_want_of_room_while_a_node_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the one that has room. Once all are there, and none has, the run is refused."""
    prefect = OneRun(Scheduled())
    intake = an_intake(prefect)
    holds = Holds(intake._worker, a_queue(intake), intake, Lane(), LOGGER)
    holds.controller = intake.controller
    run_id = prefect.run_id
    controller: Any = intake.controller
    controller.scheduler.state.jobs[run_id] = Job(run_id, Request(), "q", 0.0, 0.0)
    room: list[str] = []
    controller.scheduler.state.capability = SimpleNamespace(possible=lambda request: bool(room))
    controller.away, controller.handle, controller.coming = (
        {"n2": "", "GPU-7": "by hand"},
        lambda event: None,
        lambda job: None,
    )
    on_the_page: list[Hold] = []
    controller.activity = SimpleNamespace(held=on_the_page.append)
    seen = intake._seen[run_id]
    seen.flow_run = prefect.as_read()
    written: list[str] = []
    refused: list[str] = []

    async def write(_: str, reason: str) -> None:
        written.append(reason)

    async def refuse(_: object, reason: str) -> None:
        refused.append(reason)

    async def nobody() -> bool:
        return False

    async def refresh(*_: object) -> None:
        return None

    monkeypatch.setattr(holds, "_write", write)
    monkeypatch.setattr(intake, "refuse", refuse)
    monkeypatch.setattr(holds, "_others_online", nobody)
    monkeypatch.setattr(holds._expectations, "refresh", refresh)
    hold = Hold(run_id, "never", "gpus=1, but there is no device")
    await holds._show(run_id, hold)
    assert refused == []
    assert "n2 cannot be used now (down, drained or out of reach), and GPU-7 is out of service: by hand" in written[0]
    assert [hold.reason for hold in on_the_page] == written, "the page says the same"
    assert holds._never == {run_id: hold}, "it is looked at again"
    controller.away = {}
    room.append("n2")
    await holds._show(run_id, hold)
    assert refused == [] and len(written) == 1, "the node has come since"
    busy = Hold(run_id, "devices", "1 of 1 is in use")
    controller.scheduler.state.nodes = {"n2": None}
    controller.coming = lambda job: Coming("another one is asked for")
    await holds._show(run_id, busy)
    controller.coming = lambda job: None
    await holds._show(run_id, busy)
    assert written[1:] == ["1 of 1 is in use. another one is asked for", "1 of 1 is in use"]
    assert [hold.reason for hold in on_the_page] == written, "also that none is asked for any more"
    room.clear()
    await holds._show(run_id, hold)
    assert refused == ["The pool cannot run it: gpus=1, but there is no device."]


async def test_a_run_that_no_node_can_hold_is_refused_once_prefect_says_who_else_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scheduler says it once. And what is said of one run meanwhile does not keep the others from being shown."""
    monkeypatch.setattr("prefect_gpu.worker.queue.holds._SHOW_WAITING_AFTER_S", 0.0)
    runs, intake = [OneRun(Scheduled()) for _ in range(3)], an_intake(OneRun(Scheduled()))
    controller, worker = cast(Any, intake.controller), cast(Any, intake._worker)
    state, refused, asked = controller.scheduler.state, list[str](), list[str]()
    state.queue_of_waiting, state.capability = (), SimpleNamespace(possible=lambda request: False)
    controller.away, controller.handle, controller.coming = {}, lambda event: None, lambda job: None
    holds = Holds(worker, a_queue(intake), intake, Lane(), LOGGER)
    holds.controller, worker.work_pool = controller, SimpleNamespace(name="pool")

    async def workers(pool: str) -> list[Any]:
        asked.append(pool)
        if len(asked) == 1:
            holds.held(Hold(runs[1].run_id, "devices", "all are in use"))  # the second waits for something else now
            raise httpx.ReadTimeout("Prefect is busy")
        return []

    async def refuse(flow_run: Any, _: str) -> None:
        refused.append(str(flow_run.id))

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(holds, "_write", nothing)
    monkeypatch.setattr(worker.client, "read_workers_for_work_pool", workers, raising=False)
    monkeypatch.setattr(intake, "refuse", refuse)
    monkeypatch.setattr(holds._lane, "lets_through", lambda: False)
    for run in runs:
        state.jobs[run.run_id] = Job(run.run_id, Request(), "q", 0.0, 0.0)
        intake._seen[run.run_id].flow_run = run.as_read()
        holds.held(Hold(run.run_id, "never", "gpus=1, but there is no device"))
    showing = asyncio.ensure_future(holds.run())
    for _ in range(200):
        await asyncio.sleep(0)
        if showing.done() or len(refused) == 2:
            break
    assert not showing.done()
    showing.cancel()
    assert sorted(refused) == sorted((runs[0].run_id, runs[2].run_id)) and list(holds._holds) == [runs[1].run_id]


async def test_a_run_that_a_gateway_did_not_know_is_shown_as_waiting_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prefect_gpu.worker.queue.holds._SHOW_WAITING_AFTER_S", 0.0)
    runs, intake = [OneRun(Scheduled()) for _ in range(2)], an_intake(OneRun(Scheduled()))
    controller = cast(Any, intake.controller)
    state, tries = controller.scheduler.state, list[str]()
    state.queue_of_waiting, controller.away, controller.coming = (), {}, lambda job: None
    holds = Holds(intake._worker, a_queue(intake), intake, Lane(), LOGGER)
    holds.controller = controller

    async def write(run_id: str, _: str) -> None:
        tries.append(run_id)
        if len(tries) == 1:
            raise ObjectNotFound(http_exc=RuntimeError("404"))

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(holds, "_write", write)
    monkeypatch.setattr(holds._expectations, "refresh", nothing)
    for run in runs:
        state.jobs[run.run_id] = Job(run.run_id, Request(), "q", 0.0, 0.0)
        intake._seen[run.run_id].flow_run = run.as_read()
        holds.held(Hold(run.run_id, "devices", "all are in use"))
    showing = asyncio.ensure_future(holds.run())
    for _ in range(200):
        await asyncio.sleep(0)
    showing.cancel()
    assert tries == [runs[0].run_id, runs[1].run_id, runs[0].run_id]


async def test_a_run_that_is_about_to_stop_is_shown_as_waiting_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its claim would be put back over what it is given as it stops, and nobody would ever start it."""
    monkeypatch.setattr("prefect_gpu.worker.queue.holds._SHOW_WAITING_AFTER_S", 0.0)
    prefect = OneRun()  # claimed
    intake, run_id = an_intake(prefect), prefect.run_id
    controller, worker = cast(Any, intake.controller), cast(Any, intake._worker)
    controller.scheduler.state.queue_of_waiting, controller.away, controller.coming = (), {}, lambda job: None
    worker.get_flow_run_logger = lambda _: LOGGER
    holds = Holds(worker, a_queue(intake), intake, Lane(), LOGGER)
    holds.controller = controller

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(holds._expectations, "refresh", nothing)
    job = controller.scheduler.state.jobs[run_id] = Job(run_id, Request(), "q", 0.0, 0.0)
    job.status, controller.runs[run_id] = Status.STOPPING, prefect.launch()
    intake._seen[run_id].flow_run = prefect.as_read()
    holds.held(Hold(run_id, "devices", "all are in use"))
    showing = asyncio.ensure_future(holds.run())
    for _ in range(200):
        await asyncio.sleep(0)
    assert [state.name for state in prefect.states] == ["Pending"]
    prefect.states.append(Scheduled(message="It had not begun"))
    job.status = Status.WAITING
    del controller.runs[run_id]
    for _ in range(200):
        await asyncio.sleep(0)
    showing.cancel()
    assert [state.name for state in prefect.states] == ["Pending", "Scheduled", "AwaitingGpu"]


@pytest.mark.parametrize("reads_in_vain", [1, 3])
async def test_a_suspension_that_the_server_announces_before_it_shows_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch, reads_in_vain: int
) -> None:
    """Prefect sends the event within the transaction that writes the state."""
    prefect, reads, heard = OneRun(Running()), list[str](), asyncio.Event()
    intake = an_intake(prefect)
    queue, state, suspended = a_queue(intake), cast(Any, intake.controller).scheduler.state, Suspended()
    job = Job(prefect.run_id, Request(), "q", 0.0, 0.0, status=Status.TRAINING)
    state.jobs[prefect.run_id], state.queue_of_waiting = job, ()
    cast(Any, intake.controller).runs[prefect.run_id] = object()

    async def nothing() -> None:
        return None

    monkeypatch.setattr(queue, "_read_quotas", nothing)
    monkeypatch.setattr(intake, "_suspend", lambda run, flow_run: heard.set())

    async def read_late(run_ids: Iterable[UUID]) -> list[FlowRun]:
        reads.extend(map(str, run_ids))
        if len(reads) == reads_in_vain + 1:
            prefect.states.append(suspended)
        return [prefect.as_read()]

    queue._pool = cast(Any, SimpleNamespace(runs_by_id=read_late))
    resource = {"prefect.resource.id": f"prefect.flow-run.{prefect.run_id}", "prefect.state-type": "PAUSED"}
    following = asyncio.ensure_future(queue.follow_news())
    queue.on_event(Event(event="prefect.flow-run.Suspended", resource=resource, occurred=suspended.timestamp))
    await asyncio.wait_for(heard.wait(), 60.0)
    following.cancel()
    assert reads == [prefect.run_id] * (reads_in_vain + 1) and not queue._announced


async def test_what_was_announced_and_is_never_shown_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = a_queue(an_intake(prefect := OneRun(Running())))
    later: list[float] = []
    loop = SimpleNamespace(call_later=lambda delay_s, *_: later.append(delay_s))
    queue._announced[prefect.run_id] = (datetime.now(timezone.utc) + timedelta(hours=1), 0)
    with monkeypatch.context() as patched:
        patched.setattr("prefect_gpu.worker.queue.queue_sync.asyncio.get_running_loop", lambda: loop)
        for _ in range(20):
            queue._read_again_if_older(prefect.as_read())
    assert len(later) == 6 and sum(later) < 5.0 and not queue._announced


class SlowPool:
    """A pool with one waiting run, of which each look at all of it takes two seconds."""

    def __init__(self, prefect: OneRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefect, self.now, self.wholes, self.count = prefect, 1000.0, 0, 1
        self.marked: list[float] = []
        self.clock = SimpleNamespace(of=datetime.timestamp)
        clock = SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now)
        monkeypatch.setattr("prefect_gpu.worker.queue.queue_sync.time", clock)

    def due_until(self, _: float) -> datetime:
        return datetime.fromtimestamp(self.now, timezone.utc)

    async def scheduled_runs(self, _: object, since: object = None) -> Any:
        if since is None:
            self.wholes += 1
            self.now += 2.0
        yield [self.prefect.as_read()]

    async def count_scheduled(self, _: object) -> int:
        return self.count

    async def runs_in_state(self, *_: object) -> list[Any]:
        return []

    async def mark_ready(self) -> None:
        self.marked.append(self.now)


async def test_the_whole_pool_is_compared_as_often_as_that_takes_little_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often the stream is opened again; and sooner if the number of waiting runs is not what is believed."""
    prefect = OneRun(Scheduled())
    queue, pool = a_queue(an_intake(prefect)), SlowPool(prefect, monkeypatch)
    queue._pool, queue._worker = cast(Any, pool), cast(Any, SimpleNamespace(_prefetch_seconds=10.0))
    job = Job(prefect.run_id, Request(), "q", 0.0, 0.0)
    queue._controller.scheduler.state.waiting = lambda: [job]  # type: ignore[method-assign]

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(queue, "_read_quotas", nothing)
    monkeypatch.setattr(queue._intake, "take_in", nothing)

    async def look(seconds: int) -> int:
        before = pool.wholes
        for _ in range(seconds):
            await queue.look()
            pool.now += 1.0
        return pool.wholes - before

    assert await look(1) == 1
    assert await look(200) == 5, "of 2 s each"
    for _ in range(5):  # the stream is opened again and again
        queue.missed()
    assert await look(5) <= 1
    pool.count = 2
    assert await look(100) in (9, 10)


async def test_prefect_writes_rarely_that_a_pool_is_polled_and_not_among_submissions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server on SQLite refuses submissions beside such a write. After a minute without, the pool is not ready."""
    prefect = OneRun(Scheduled())
    queue, pool = a_queue(an_intake(prefect)), SlowPool(prefect, monkeypatch)
    queue._pool, queue._worker = cast(Any, pool), cast(Any, SimpleNamespace(_prefetch_seconds=10.0))
    queue._controller.scheduler.state.waiting = list  # type: ignore[method-assign]
    queue._lane = Lane(lambda: pool.now)

    async def nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(queue, "_read_quotas", nothing)
    monkeypatch.setattr(queue._intake, "take_in", nothing)

    async def look(times: int, every_s: float, submitting: bool) -> list[float]:
        pool.marked.clear()
        for _ in range(times):
            queue._looked_at = pool.now  # at the whole pool, just now
            if submitting:
                queue._lane.submission()
            await queue.look()
            pool.now += every_s
        return [after - before for before, after in pairwise(pool.marked)]

    assert set(await look(13, 10.0, submitting=False)) == {20.0}
    assert set(await look(13, 10.0, submitting=True)) == {30.0}
    assert set(await look(5, 30.0, submitting=True)) == {30.0}, "a worker that looks rarely"


def _serves(flow_run: object) -> bool:
    return True
