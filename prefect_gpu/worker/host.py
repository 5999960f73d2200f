"""What the controller needs done in Prefect: runs are claimed, followed, cancelled, and brought to their end there."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import httpx
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.logging.loggers import PrefectLogAdapter
from prefect.states import Cancelling
from prefect.workers.base import BaseWorker

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.launched import is_of_a_run
from prefect_gpu.runtime.launch.launch import Follower, Launch, died_of_its_limit
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.runtime.tasks import Tasks
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.settings import GpuSettings
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome
from prefect_gpu.training import protocol
from prefect_gpu.worker.deadlines.promising import Answer, Promising
from prefect_gpu.worker.endings.finalisation import Finalisation
from prefect_gpu.worker.endings.orphans import Orphans
from prefect_gpu.worker.endings.recording import Recorder
from prefect_gpu.worker.endings.settling import is_tried_again
from prefect_gpu.worker.endings.stuck_claims import StuckClaims
from prefect_gpu.worker.endings.suspension import SUSPENDED, WORDS, refuse, suspends_itself
from prefect_gpu.worker.endings.what_it_took import keep_what_it_took
from prefect_gpu.worker.launching.launcher import Launcher
from prefect_gpu.worker.launching.run_credentials import RunCredentials
from prefect_gpu.worker.leadership.leader_election import Leadership
from prefect_gpu.worker.queue.holds import Holds, other_is_online
from prefect_gpu.worker.queue.intake import Intake
from prefect_gpu.worker.queue.queue_sync import QueueSync
from prefect_gpu.worker.server.asking import Asking
from prefect_gpu.worker.server.control import EngineControl
from prefect_gpu.worker.server.lane import Lane
from prefect_gpu.worker.server.pool import PoolView
from prefect_gpu.worker.server.stream import PoolStream
from prefect_gpu.worker.shares.quota import QuotaReader
from prefect_gpu.worker.telling.display import RunDisplay
from prefect_gpu.worker.telling.estimate_words import launch_line
from prefect_gpu.worker.telling.launch_events import LaunchEvents
from prefect_gpu.worker.telling.metrics import PoolMetrics
from prefect_gpu.worker.telling.run_spans import RunSpans

# What is written of every launch waits for so long, unless the flow is known to have begun: on a slow disk its first
# line would wait behind that.
_ANNOUNCED_AFTER_S = 2.0
_FALLING_S = 5.0  # Prefect has so long to say whether a gang is tried again


@dataclass
class _Prepared(Follower):
    """What is noted of a launch when it is claimed.

    Attributes:
        breaks: How often Prefect's event stream had broken by then.
        begun: Set once the flow has begun, as far as is known.
    """

    breaks: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class PrefectHost:
    """Owns the runs of one session. Implements the controller's :class:`~prefect_gpu.runtime.host.Host`.

    Attributes:
        local: Whether runs are processes of this machine.
        contained: Whether they are in containers.
        shares_files: Whether those that are not see the files of this machine.
        scope: See :meth:`prefect_gpu.runtime.drivers.base.Driver.scope`; empty if they are.
        credentials: ``AWS_...`` variables for the place of the checkpoints; None: the environment's.
        role: Gives each run credentials of its own instead; None: it does not.
        lane: Where what is only shown is written.
        tasks: Keeps what goes on beside.
        controller, stream, metrics: Set by the session, which makes them know each other.
        asking: How Prefect is asked what must be known.
        page_url: Of the pool's page; empty: there is none.
        spans: Makes OpenTelemetry's spans; None: Prefect makes none either.
    """

    worker: BaseWorker[Any, Any, Any]
    pool: PoolView
    settings: GpuSettings
    local: bool
    contained: bool
    scope: str
    credentials: Mapping[str, str] | None
    role: RunCredentials | None
    control: EngineControl
    recorder: Recorder
    leadership: Leadership
    lane: Lane
    tasks: Tasks
    logger: logging.Logger
    shares_files: bool = True
    page_url: str = ""
    spans: RunSpans | None = None
    asking: Asking = field(init=False)
    controller: Controller = field(init=False)
    stream: PoolStream = field(init=False)
    metrics: PoolMetrics = field(init=False)

    def __post_init__(self) -> None:
        self._client = self.worker.client
        self._host_prefix = f"{socket.gethostname()}:"
        pool = self.worker.work_pool
        self.asking = Asking(
            self._client, pool.name, str(pool.id), self.logger, believed_after_s=self.settings.deleted_after_seconds
        )
        self._finalisation = Finalisation(self.asking, self.pool.clock)
        self._orphans = Orphans(
            self.asking, self._host_prefix, self.scope, self.pool.clock, partial(other_is_online, self.worker)
        )
        self.intake = Intake(
            self.worker,
            self.pool,
            self.asking,
            self._orphans,
            cancel=self.cancel,
            suspend=self.suspend,
            logger=self.logger,
            settings=self.settings,
            shares_files=self.shares_files,
        )
        self.claims = StuckClaims(self.pool, self.asking, lambda: self.controller.runs)
        self.quota = QuotaReader(self._client, self.settings, self.logger)
        self.queue = QueueSync(
            self.worker,
            self.pool,
            self.asking,
            self.intake,
            lane=self.lane,
            logger=self.logger,
            settings=self.settings,
            quota=self.quota,
        )
        self._events = LaunchEvents(self.worker)
        self.holds = Holds(self.worker, self.queue, self.intake, self.lane, self.logger)
        self.promising = Promising(
            self.asking,
            self.intake.flow_run,
            self._deadline_of,
            self.tasks.start,
            self.worker.get_flow_run_logger,
            self.intake.refusing,
        )
        self._launcher = Launcher(
            self.worker,
            self.pool,
            self.intake,
            self.control,
            self.asking,
            self.settings,
            self.contained,
            not self.local,
            self.scope,
            self.credentials,
            self.role,
            self.shares_files,
        )

    # -- waiting and launching ------------------------------------------------------------------------------------

    def held(self, hold: Hold) -> None:
        """See :class:`Host`."""
        self.holds.held(hold)

    def answered(self, answer: Answer) -> None:
        """See :class:`Host`."""
        self.promising.answered(answer)

    def _deadline_of(self, run_id: str) -> float | None:
        job = self.controller.scheduler.state.jobs.get(run_id)
        return None if job is None else job.request.deadline_at

    def describe(self, run_id: str) -> RunRecord:
        """See :class:`Host`."""
        state = self.controller.scheduler.state
        job = state.jobs[run_id]
        return self._launcher.describe(job, state.promises.protects(job))

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See :class:`Host`."""
        run.attach(_Prepared(self.stream.breaks))
        await self.leadership.must_hold()
        with self.lane.urgent():
            if self.spans is not None and (label := self.spans.label(run.run_id)):
                with suppress(httpx.HTTPError, ObjectNotFound):
                    await self.asking.label(run.run_id, label)
            self.claims.note(run.folder.name)
            return await self._launcher.prepare(run)

    async def launched(self, run: Launch) -> None:
        """See :class:`Host`."""
        assert run.handle is not None
        self._events.submitted(run)
        if run.attached(RunDisplay) is None:  # of a gang, the first instance may have reported before the last began
            self._show(run)
        self.tasks.start(self._announce(run, run.handle.pid))

    def _infrastructure_pid(self, pid: int | str) -> str:
        """What Prefect calls a process, ``host:pid``, or a container, ``node:container``, whichever machine leads."""
        return pid if isinstance(pid, str) else f"{self._host_prefix}{pid}"

    async def _announce(self, run: Launch, pid: int | str) -> None:
        flow_run = self.intake.flow_run(run.run_id)
        place = run.record.placement
        devices = ", ".join(place.all_devices) or "no device"
        if flow_run is not None:
            logger = self.worker.get_flow_run_logger(flow_run)
            logger.info("Worker %r gave this run %s and cores %s", self.worker.name, devices, _cores_of(place))
            estimate = self.controller.estimates.of(run.run_id)
            expected = launch_line(estimate)
            if expected is not None:
                logger.info("%s", expected)
            for warning in estimate.warnings:
                logger.warning("About its estimate: %s", warning)
        prepared = run.attached(_Prepared)
        if prepared is not None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(prepared.begun.wait(), _ANNOUNCED_AFTER_S)
        with suppress(httpx.HTTPError, ObjectNotFound):
            await self.asking.persist(lambda: self._write_place(run, pid))

    async def _write_place(self, run: Launch, pid: int | str) -> None:
        if self.controller.runs.get(run.run_id, run) is not run:
            return  # a later try of it is on its way
        async with self.lane.reserved():
            await self._client.update_flow_run(UUID(run.run_id), infrastructure_pid=self._infrastructure_pid(pid))
            await self.asking.label(run.run_id, self._events.labels)

    async def unlaunched(self, run: Launch) -> tuple[Outcome, str, float | None] | None:
        """See :class:`Host`."""
        await self.leadership.must_hold()
        with self.lane.urgent():
            ended = await self._finalisation.give_back(run)
        self.intake.finalised(run.run_id)
        return ended

    # -- following ------------------------------------------------------------------------------------------------

    def reported(self, run: Launch, kind: str) -> None:
        """See :class:`Host`."""
        display = run.attached(RunDisplay) or self._show(run)  # an adopted run has none yet
        prepared = run.attached(_Prepared)
        if kind in (protocol.PHASE, protocol.PROGRESS):
            display.wake()
            if prepared is not None:
                prepared.begun.set()

    def _show(self, run: Launch) -> RunDisplay:
        def warn(text: str) -> None:
            self._log_for(run).warning("Run %s: %s", run.record.name, text)

        display = RunDisplay(
            self._client,
            run,
            self.controller.estimates,
            warn,
            self.lane,
            self.logger,
            story=lambda: self.controller.scheduler.state.story(run.run_id),
            page=self.page_url,
            waits_for=lambda: self._waits_for(run),
        )
        run.attach(display)
        return display

    def _waits_for(self, run: Launch) -> tuple[str | None, float | None]:
        ahead, now = self.controller.runs.get(run.record.behind or ""), CLOCK()
        outlook = self.controller.estimates.outlook(ahead.run_id, now) if ahead is not None else None
        ends_at = None if outlook is None else now + outlook.remaining_s.median
        return (None if ahead is None else ahead.record.name), ends_at

    async def cancel(self, run: Launch) -> None:
        """Ask the run to end as cancelled; what does not end in time is killed. Returns at once."""
        if run.cancelling:
            return
        run.cancelling = True
        self.logger.info("Cancelling run %s", run.record.name)

        async def stop() -> None:
            with suppress(Exception):  # the signal alone must do
                await self.control.announce_cancellation(run.run_id)
            await self.leadership.must_hold()
            if run.handle is not None:
                await run.handle.announce_cancellation()
            await self.controller.stop(run.run_id, self.settings.cancel_grace_seconds)

        self.tasks.keep(stop, f"cancel-{run.run_id}")

    def stop_wasting(self, run: Launch, reason: str) -> None:
        """Cancel a run that holds devices for nothing, as the operator has set. Returns at once."""
        run.stop_reason = reason

        async def stop() -> None:
            with suppress(httpx.HTTPError, ObjectNotFound):  # the signal alone must do
                await self._client.set_flow_run_state(UUID(run.run_id), Cancelling(message=reason))
            await self.cancel(run)

        self.tasks.start(stop(), f"waste-{run.run_id}")

    def suspend(self, run: Launch, flow_run: FlowRun) -> None:
        """Let a run save and leave its devices, as its user has suspended it; or let it go on, and say why."""
        if run.suspending or run.cancelling or suspends_itself(flow_run.state):
            return
        run.suspending = True
        if run.record.request.preemptible:
            self._log_for(run).info("Suspending run %s: it saves its progress and leaves its devices", run.record.name)
            self.controller.suspend(run.run_id, WORDS)
        elif run.phase not in protocol.PHASES:  # it is Prefect's alone
            self._log_for(run).warning(
                "Run %s is suspended, and reports nothing to the pool: its process ends when it begins another task.",
                run.record.name,
            )
        else:
            self.tasks.start(self._refuse_to_suspend(run, flow_run), f"suspend-{run.run_id}")

    async def _refuse_to_suspend(self, run: Launch, flow_run: FlowRun) -> None:
        try:
            if said := await self.asking.persist(lambda: refuse(self._client, run, flow_run)):
                await self.controller.instruct(run.run_id, protocol.GO_ON)
                self._log_for(run).warning("%s", said)
        finally:
            run.suspending = False  # its user may suspend it again

    def _log_for(self, run: Launch) -> logging.Logger | PrefectLogAdapter:
        """What its user sees beside the run; the worker's own log for an adopted run, which is not read again."""
        flow_run = self.intake.flow_run(run.run_id)
        return self.logger if flow_run is None else self.worker.get_flow_run_logger(flow_run)

    def is_here(self, infrastructure_pid: str) -> bool:
        """Whether that is, or was, on this machine or on a node of ours."""
        if not self.scope:
            return infrastructure_pid.startswith(self._host_prefix)
        return infrastructure_pid.partition(":")[0] in {node.id for node, _ in self.controller.fleet.known}

    def is_anothers(self, infrastructure_pid: str, run_id: str = "") -> bool:
        """Whether that is a process of that run on this machine. If it is not ours, another worker launched it."""
        number = infrastructure_pid.removeprefix(self._host_prefix)
        return not self.scope and number.isdecimal() and is_of_a_run(int(number), run_id)

    async def kill(self, infrastructure_pid: str, grace_seconds: float, run_id: str = "") -> bool:
        """Stop the launched run with this ``host:pid`` or ``node:container``; False if there is none.

        Args:
            run_id: The flow run that is meant. Its number may be that of another one's process by now. Empty: any.
        """
        for run in list(self.controller.runs.values()):
            if run.handle is None or (run_id and run.run_id != run_id):
                continue
            if self._infrastructure_pid(run.handle.pid) == infrastructure_pid:
                return await self.controller.stop(run.run_id, grace_seconds)
        return False

    # -- ending ---------------------------------------------------------------------------------------------------

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        """See :class:`Host`."""
        await self.leadership.must_hold()
        display, prepared = run.attached(RunDisplay), run.attached(_Prepared)
        if display is not None:
            await display.close(report, self.controller.fleet.named(run.record.placement.all_devices))
        if prepared is not None:
            prepared.begun.set()
        self.control.unregister(run.run_id)
        self._executed(run, report.returncode)
        api_was_away = prepared is not None and self.stream.breaks > prepared.breaks
        with self.lane.urgent():
            outcome, message = await self._finalisation.finalise(run, report, api_was_away=api_was_away)
        if outcome is None and message == SUSPENDED:
            from_where = f" from step {run.saved_step}" if run.saved_step else ""
            self._log_for(run).info("Suspended: its devices are free. Once it is resumed, it carries on%s.", from_where)
        await keep_what_it_took(self.asking, run, ends=outcome is not None)
        if outcome in ("failed", "crashed") and died_of_its_limit(run, report, message):
            self.intake.exhausted(run.run_id)
        self.intake.finalised(run.run_id)
        return outcome, message

    async def falls_apart(self, run: Launch) -> None:
        """See :class:`Host`. Else the run's engine tells Prefect that it has crashed, which is a final state."""

        async def tell() -> None:
            if is_tried_again(await self._client.read_flow_run(UUID(run.run_id))):
                await self.control.relinquish(run.run_id)
                if run.handle is not None:
                    await run.handle.relinquish()

        with suppress(Exception):  # the engine cannot reach Prefect, either
            await asyncio.wait_for(tell(), _FALLING_S)

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See :class:`Host`."""
        await self.leadership.must_hold()
        display = run.attached(RunDisplay)
        if display is not None:
            await display.leave()
        with self.lane.urgent():
            await keep_what_it_took(self.asking, run)
            waiting = await self._finalisation.give_way(run, reason)
        if waiting is None:
            return False
        self.control.unregister(run.run_id)
        self._executed(run, None)  # how it ended says nothing of the run
        self.intake.waits_again(waiting)
        return True

    def _executed(self, run: Launch, returncode: int | None) -> None:
        if run.handle is not None:
            self._events.executed(run, self._infrastructure_pid(run.handle.pid), returncode)

    def released(self, run: Launch) -> None:
        """See :class:`Host`."""
        self.queue.doubt(run.run_id)

    def record_contention(self, row: ContentionRow) -> None:
        """See :class:`Host`."""
        self.recorder.keep(row)

    def record_history(self, row: HistoryRow) -> None:
        """See :class:`Host`."""
        self.recorder.keep(row)
        self.metrics.recorded(row)

    async def bury_orphans(self) -> None:
        """Bring runs to their end that Prefect believes to run, and of which nothing is left."""
        types = (StateType.RUNNING, StateType.CANCELLING, StateType.PENDING)
        believed = await self.asking.persist(lambda: self.pool.runs_in_state(*types))
        await self._orphans.bury(believed, self.controller.runs)


def _cores_of(placement: Placement) -> str:
    """The cores of each part: those of different nodes have the same numbers."""
    return ", ".join(str(list(part.cpus)) for part in placement.parts)
