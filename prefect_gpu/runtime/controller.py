"""The live world: events from runs, drivers and users go to the scheduler; its instructions are carried out here.

The controller knows nothing of Prefect. What Prefect must be asked or told goes through a :class:`.Host`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.estimation.submission import known_of
from prefect_gpu.runtime.adjusting import Adjuster
from prefect_gpu.runtime.channel import ChannelServer, new_token
from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.chronicle import LEFT, Chronicle
from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchError
from prefect_gpu.runtime.event_log import EventLog
from prefect_gpu.runtime.fleet import Fleet
from prefect_gpu.runtime.gang import adopt_together, instance_folder, instance_id, launch_together
from prefect_gpu.runtime.host import Host, NotOursError
from prefect_gpu.runtime.idle import IdleTime
from prefect_gpu.runtime.instances import CHANNEL_FILE, Instances
from prefect_gpu.runtime.learning.estimates import Estimates, as_row
from prefect_gpu.runtime.leaving import Leaving
from prefect_gpu.runtime.pressure_watch import PressureWatch
from prefect_gpu.runtime.records import RecordStore, RunRecord, remove_older
from prefect_gpu.runtime.reports import STATUS_OF_PHASE, Reports
from prefect_gpu.runtime.slowdown import Slowdowns
from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.instructions import (
    Finish,
    Hold,
    Instruction,
    Launch,
    Move,
    OpenGate,
    Preempt,
    SetCores,
    SetShare,
)
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.storage.row import ContentionRow
from prefect_gpu.training import protocol

_ADOPTED_GRACE_S = 5.0  # for a run whose cancellation an earlier worker had begun
ABILITIES = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True, finishes=True)
"""What this world can carry out."""

_RETRY_S = 2.0  # from a launch that failed to the next try


class Controller:
    """Runs one scheduler against one driver.

    Args:
        host: Whoever owns the runs.
        nodes: Machines with their devices and cores, as far as this worker manages them.
        driver: Starts the processes.
        state_dir: Folder for what must survive the worker.
        pool: Name of the pool; records of other pools in the same folder are left alone.
        profile: Name of a scheduling profile.
        abilities: What the scheduler may ask for: all of :data:`ABILITIES`, or less.
        advertise: The address that runs are told to reach the channel at; None: the one that it listens on.
        keep_days: How long checkpoints of runs that did not complete, and bundles, are kept.
        checkpoints: Where checkpoints are kept, a folder or ``s3://bucket/prefix``; None: in the state folder.
        leads: Whether this worker may decide now. One that may not any more does nothing; its runs go on.
        credentials: ``AWS_...`` variables for that place, which runs get from the host; None: the environment's.
        clock: Unix seconds; tests may replace it.
    """

    def __init__(
        self,
        host: Host,
        *,
        nodes: Sequence[Node],
        driver: Driver,
        state_dir: Path,
        pool: str,
        profile: str,
        abilities: Abilities = ABILITIES,
        channel_host: str = "127.0.0.1",
        channel_port: int = 0,
        advertise: str | None = None,
        keep_days: float = 30.0,
        checkpoints: str | None = None,
        leads: Callable[[], bool] = lambda: True,
        credentials: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        logger: logging.Logger | None = None,
    ) -> None:
        self.scheduler = Scheduler(profile, abilities)
        self.runs: dict[str, TrackedRun] = {}  # launched and not yet settled
        self.estimates = Estimates()
        self.idle = IdleTime()
        self.chronicle = Chronicle()
        self.fleet = Fleet(nodes)
        self._logger = logger or logging.getLogger("prefect_gpu.controller")
        self._host = host
        self._driver = driver
        driver.may_start = leads
        self._state_dir = state_dir
        self._keep_days = keep_days
        self._records = RecordStore(state_dir, pool)
        self._checkpoints = RunCheckpoints(checkpoints or str(state_dir / "checkpoints"), self._logger, credentials)
        self._log = EventLog(state_dir / "events" / f"{pool}.jsonl", profile, abilities)
        self._leads = leads
        self._clock = clock
        self._channel = ChannelServer(
            self._on_run_event,
            host=channel_host,
            port=channel_port,
            logger=self._logger,
            on_session=self._on_session,
            advertise=advertise,
        )
        self._adjuster = Adjuster(self._channel, self.fleet, self._save, clock)
        self._leaving = Leaving(self._channel, self._save, self._logger)
        self._reports = Reports()
        self._slowdowns = Slowdowns()
        self._channel_file = state_dir / "channels" / f"{pool}.json"
        self._locks = state_dir / "locks"
        self._instances = Instances(driver, self.fleet, self._checkpoints, self._locks, self._channel_file)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the channel, warm up the driver, and take over what an earlier worker left running."""
        await self._channel.start(waiting=True)
        self._channel_file.parent.mkdir(parents=True, exist_ok=True)
        self._locks.mkdir(parents=True, exist_ok=True)
        temporary = self._channel_file.with_suffix(".tmp")
        temporary.write_bytes(self._whereabouts)
        temporary.replace(self._channel_file)
        await self._driver.start()
        nodes = await self._driver.nodes()
        if nodes is not None:
            self.fleet.change(nodes, self._driver.closed_nodes)
        await asyncio.to_thread(self._records.clean_up)
        await asyncio.to_thread(remove_older, self._state_dir / "bundles", self._keep_days)
        await asyncio.to_thread(self._checkpoints.clean_up, self._keep_days)
        self.handle(ev.NodesChanged(self.fleet.nodes))
        for folder, record in self._records:
            await self._adopt(folder, record)
        self._channel.open()  # not before: whoever comes back must not be told that nobody knows it
        await self._driver.sweep()
        watched: list[Coroutine[Any, Any, None]] = [self._driver.watch_nodes(self._change_nodes)]
        if self._driver.local and self.fleet.nodes:
            watched.append(PressureWatch(self.fleet.nodes[0], self.scheduler.state, self.runs, self.handle).run())
        for work in watched:
            self._start(work, "nodes")

    def abandon(self) -> None:
        """Decide nothing any more, from this moment on, and follow no run. To be closed nevertheless."""
        self._closing = True
        self._idle.set()
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Let go. Running processes go on; the next worker finds them."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._adjuster.close()
        self._leaving.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        await self._driver.close()
        self._log.close()

    @property
    def _whereabouts(self) -> bytes:
        return json.dumps({"url": self._channel.url}).encode()

    @property
    def nodes_away(self) -> Sequence[str]:
        """Names of nodes that cannot be used now and may be back: see :attr:`.Driver.away`."""
        return self._driver.away

    async def wait_idle(self) -> None:
        """Wait until no launched run is left unsettled."""
        await self._idle.wait()

    def _change_nodes(self, nodes: Sequence[Node]) -> None:
        before = self.fleet.nodes
        self.fleet.change(nodes, self._driver.closed_nodes)
        if self.fleet.nodes != before:
            self.handle(ev.NodesChanged(self.fleet.nodes))

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Tell the scheduler what happened and carry out what it says. While closing, nothing happens any more."""
        if self._closing or not self._leads():
            return
        now = self._clock()
        self._log.write(event, now)
        for instruction in self.scheduler.handle(event, now):
            self._carry_out(instruction, now)
        self._arm_timer(now)

    def _carry_out(self, instruction: Instruction, now: float) -> None:
        match instruction:
            case Launch():
                self._begin(instruction, now)
            case Hold():
                self.chronicle.held(instruction)
                self._host.held(instruction)
            case OpenGate(job) | SetCores(job) | SetShare(job) | Finish(job):
                run = self.runs.get(job)
                if run is not None:  # else it has ended, and this is the last word about it
                    self._adjuster.carry_out(run, instruction)
                    self.chronicle.adjusted(run, instruction, now)
            case Preempt(job) | Move(job):
                run = self.runs.get(job)
                if run is not None:
                    self._leaving.begin(run, instruction)
            case _:  # the abilities that the scheduler was given rule these out
                self._logger.error("The scheduler asks for what this worker cannot do: %s", instruction)

    async def stop(self, run_id: str, grace_seconds: float) -> bool:
        """Stop a launched run's process and everything it started; False if the run is not launched here."""
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.cancelling = True
        run.record.cancelled = True
        self._save(run)
        if run.handle is not None:
            await run.handle.stop(grace_seconds)
        return True

    async def instruct(self, run_id: str, kind: str, data: dict[str, Any] | None = None) -> None:
        """Send an instruction to a run over its channel, now or when it connects."""
        await self._channel.instruct(run_id, kind, data or {})

    def _arm_timer(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.scheduler.next_due()
        if due is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - now) + 0.001, self.handle, ev.TimePassed())

    # -- launching ------------------------------------------------------------------------------------------------

    def _begin(self, launch: Launch, now: float) -> None:
        try:
            record = self._host.describe(launch.job)
            record.placement = launch.placement
            record.behind, record.gated = launch.behind, launch.behind is not None
            record.token = new_token()
            record.times["granted"] = now
            record.known["estimate"] = as_row(self.estimates.of(launch.job))
            record.speeds = self.estimates.speeds(launch.job)
            # Written before anything is claimed or started: whatever happens next, a new worker will know of it.
            run = TrackedRun(record, self._records.create(record))
        except Exception as error:  # the disk is full, most likely
            self._logger.exception("Run %s could not be recorded, and so is not started", launch.job)
            failed = ev.LaunchFailed(launch.job, f"it could not be recorded: {error}", now + _RETRY_S)
            asyncio.get_running_loop().call_soon(self.handle, failed)
            return
        self._meet(run)
        self.chronicle.granted(run, now)
        self._follow(run, self._launch(run, self._leaving.ahead_of(run, self.runs.values())))

    def _meet(self, run: TrackedRun) -> None:
        """Note whom the run shares its devices with: what neighbours do to each other is learned from that."""
        if not run.record.placement.shared:
            return
        devices = set(run.record.placement.all_devices)
        for other in self.runs.values():
            if devices.intersection(other.record.placement.all_devices):
                run.company.append(other)
                other.company.append(run)

    async def _launch(self, run: TrackedRun, ahead: Sequence[TrackedRun]) -> None:
        for other in ahead:
            await other.gone.wait()
        try:
            spec = await self._host.prepare(run)
        except NotOursError as error:
            self._drop(run, ev.JobEnded(run.run_id, f"not launched: {error}"))
            return
        except LaunchError as error:
            if isinstance(run.leaving, Preempt):  # it was told to stop meanwhile, which it has
                self._drop(run, ev.JobStopped(run.run_id))
            else:
                self._drop(run, ev.LaunchFailed(run.run_id, str(error), self._clock() + _RETRY_S))
            return
        except Exception as error:
            # The run may be claimed already, so it cannot simply wait again: its owner learns why it did not start.
            self._logger.exception("Run %s could not be prepared", run.record.name)
            await self._end(run, ExitReport(returncode=1, tail=(f"{type(error).__name__}: {error}",)))
            return
        if run.cancelling or run.leaving is not None:
            await self._end(run, ExitReport(returncode=0))
            return
        if not self._leads():  # it was frozen meanwhile, say: whoever leads now deals with the run
            return
        self._save(run)  # with what was found out meanwhile: the worker may die as soon as the process exists
        try:
            self._channel.admit(run.run_id, run.record.token)
            run.handle = await launch_together(
                self._driver, self._instances.of(run, spec, self._channel.url), self._logger
            )
        except LaunchError as error:
            self._logger.error("Run %s could not be started: %s", run.record.name, error)
            known = ExitReport(127, tail=(str(error),))
            if error.explains or error.away:
                known = ExitReport(None, cause=str(error), lost=error.away)
            await self._end(run, known)
            return
        run.record.times["launched"] = self._clock()
        run.record.warm = run.handle.warm
        self._save(run)
        self._adjuster.launched(run)
        self._adjuster.rank(self.runs)
        if run.cancelling or run.leaving is not None:  # that came while the process was being made
            await run.handle.stop(0)
        await self._host.launched(run)
        await self._watch(run)

    async def _adopt(self, folder: Path, record: RunRecord) -> None:
        """Take over one launch of an earlier worker."""
        run = TrackedRun(record, folder, cancelling=record.cancelled)
        if record.leaving:  # the worker before us was about to stop it: it waits again, and is placed afresh
            run.leaving = Preempt(record.run_id, record.leaving)
        parts = range(len(record.placement.parts))
        launches = [(instance_id(record.run_id, rank), instance_folder(folder, rank)) for rank in parts]
        handle = await adopt_together(self._driver, launches, self._logger)
        if handle is None:
            self.runs[record.run_id] = run
            self._idle.clear()
            self._follow(run, self._return_unlaunched(run))
            return
        run.handle = handle
        run.record.warm = handle.warm  # the worker before us may have died before it knew
        run.phase = max(
            (phase for phase in protocol.PHASES if phase in record.times),
            key=lambda phase: (record.times[phase], protocol.PHASES.index(phase)),
            default="launching",
        )
        await handle.give(CHANNEL_FILE, self._whereabouts)
        self.chronicle.adopted(run, self._clock())
        self._channel.admit(record.run_id, record.token, session=record.session)
        status = STATUS_OF_PHASE.get(run.phase, Status.LAUNCHING)
        submitted = record.times.get("submitted", 0.0)
        self._logger.info("Found run %s running (pid %s) and adopted it", record.name, handle.pid)
        self._follow(run, self._watch(run))
        if record.cancelled:  # the worker before us was about to stop it
            self._start(handle.stop(_ADOPTED_GRACE_S), f"stop-{record.run_id}")
        self.handle(
            ev.JobAdopted(
                record.run_id,
                record.request,
                record.queue,
                submitted,
                record.placement,
                status,
                record.name,
                record.behind,
                record.times[protocol.TRAINING] if status is Status.TRAINING else None,
            )
        )
        job = self.scheduler.state.running.get(record.run_id)
        self._adjuster.adopted(run, behind=job.behind if job is not None else None)
        if run.phase == protocol.TRAINING:
            self.idle.begins(run.run_id, record.placement.all_devices, record.times[protocol.TRAINING])
        self._estimate_adopted(run)

    def _estimate_adopted(self, run: TrackedRun) -> None:
        record = run.record
        kind = self.fleet.kind if record.request.gpus else None
        parameters = record.known.get("parameters") or {}
        known = known_of(str(record.known.get("flow_name")), parameters, record.request, {}, kind)
        estimate = self.estimates.submitted(run.run_id, known, record.request.max_gpus, speeds=record.speeds)
        self.handle(ev.JobEstimated(run.run_id, estimate))
        if run.phase == protocol.TRAINING:
            self._handle(self.estimates.entered(run, run.phase, record.times[protocol.TRAINING]))

    async def _return_unlaunched(self, run: TrackedRun) -> None:
        self._channel.revoke(run.run_id)
        await self._host.unlaunched(run)
        self._release(run)

    # -- following ------------------------------------------------------------------------------------------------

    async def _watch(self, run: TrackedRun) -> None:
        assert run.handle is not None
        await self._end(run, await run.handle.wait())

    async def _end(self, run: TrackedRun, report: ExitReport) -> None:
        """The process is gone: free its devices first, then make everybody know."""
        ended_at = report.ended_at or self._clock()
        self._channel.revoke(run.run_id)
        self.idle.ends(run.run_id, ended_at)
        self.chronicle.ended(run, ended_at)
        self._leaving.over(run)
        if await self._carries_on(run, ended_at):
            return
        self.handle(ev.JobEnded(run.run_id, _exit_words(report)))
        outcome, message = await self._host.settle(run, report)
        self.chronicle.over(run, ended_at, outcome, message)
        if outcome in ("completed", "cancelled"):  # a failed run may be tried again from where it was
            await asyncio.to_thread(self._checkpoints.remove, run.run_id)
        if outcome is not None:
            devices = self.fleet.named(run.record.placement.all_devices)
            try:
                row = run.history_row(
                    outcome=outcome, message=message, report=report, devices=devices, ended_at=ended_at
                )
                await asyncio.to_thread(self._host.record_history, row)
            except Exception:
                self._logger.exception("The history row of run %s could not be written", run.record.name)
        self._release(run)

    async def _carries_on(self, run: TrackedRun, ended_at: float) -> bool:
        """Let a run that left its place wait again, or start it where it is to carry on. False if it has ended."""
        why = run.leaving
        if why is None or run.cancelling or run.phase in (protocol.SAVING, protocol.FINISHED):
            return False
        if not await self._host.give_way(run, why.reason):
            return False
        self.chronicle.over(run, ended_at, LEFT, why.reason)
        self._release(run, carries_on=True)
        if isinstance(why, Move):
            self._begin(Launch(run.run_id, why.placement, why.reason), self._clock())
        else:
            self.handle(ev.JobStopped(run.run_id))
        return True

    def _drop(self, run: TrackedRun, event: ev.Event) -> None:
        self.handle(event)
        self._release(run, carries_on=not isinstance(event, ev.JobEnded))

    def _release(self, run: TrackedRun, *, carries_on: bool = False) -> None:
        """Nothing is left of the launch; from here on the run may be submitted again, or carries on as it is."""
        self.chronicle.over(run, self._clock())
        self._leaving.over(run)
        self._records.remove(run.folder)
        self._unfollow(run)
        if carries_on:
            self.estimates.left(run)
        else:
            self.estimates.forget(run.run_id)
        self._reports.forget(run.run_id)
        self._slowdowns.forget(run.run_id)
        self._host.released(run)

    def _follow(self, run: TrackedRun, work: Coroutine[Any, Any, None]) -> None:
        self.runs[run.run_id] = run
        self._idle.clear()
        self._start(work, f"run-{run.run_id}")

    def _unfollow(self, run: TrackedRun) -> None:
        if self.runs.get(run.run_id) is run:
            del self.runs[run.run_id]
            self._adjuster.rank(self.runs)
        if not self.runs:
            self._idle.set()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            error = task.exception()
            if error is not None:  # a bug: say so; the record stays, so that a restart settles the run
                self._logger.error("Following %s failed", task.get_name(), exc_info=error)

    async def _on_run_event(self, run_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
        run = self.runs.get(run_id)
        if run is None:
            return
        if kind == protocol.PHASE:
            phase = str(data.get("phase"))
            waits = phase == protocol.PREPARING and data.get("waiting")
            if not run.enter(phase, at, data) and not waits:
                return
            if phase == protocol.TRAINING:
                run.device_idle_s = self.idle.begins(run_id, run.record.placement.all_devices, at)
            elif phase != protocol.PREPARING:  # a try that failed keeps its devices for the next one
                self.idle.ends(run_id, at)
            # First of all, since a device may be idle until somebody is told.
            self._handle(self._reports.phase(run))
            if phase == protocol.TRAINING:
                self._adjuster.trains(run)
            self._adjuster.rank(self.runs)
            self._save(run)
            self._handle(self.estimates.entered(run, phase, at))
        elif kind == protocol.PROGRESS:
            run.progressed(data, at)
            self._handle(self.estimates.progressed(run, at), *self._reports.progress(run, data, at))
            for measured in self._slowdowns.progressed(run, self.runs.values(), at):
                self._keep(measured, at)
                self.handle(measured)
        elif kind == protocol.USAGE:
            run.used(data)
            self._handle(*self._reports.usage(run, data))
        elif kind == protocol.OUT_OF_MEMORY:
            self._exhausted(run)
        elif kind == protocol.CHECKPOINT:
            self._leaving.saved(run, data.get("error"))
        self.chronicle.reported(run, kind, at)
        self._host.reported(run, kind)

    def _keep(self, measured: ev.SlowdownMeasured, at: float) -> None:
        """Have what two runs on several nodes do to each other kept at once: one of them may be stopped for it now."""
        if measured.pair is None or self._closing or not self._leads():
            return
        own, other = measured.pair
        row = ContentionRow(
            measured.job,
            program=own.model,
            gpus=own.gpus,
            nodes=own.nodes,
            beside=other.model,
            beside_gpus=other.gpus,
            beside_nodes=other.nodes,
            slowdown=measured.slowdown,
            measured_at=at,
        )

        async def write() -> None:
            try:
                await asyncio.to_thread(self._host.record_contention, row)
            except Exception as error:  # the scheduler has been told: only the next worker will not know
                self._logger.warning("What slowed run %s down could not be kept: %s", measured.job, error)

        self._start(write(), f"contention-{measured.job}")

    def _exhausted(self, run: TrackedRun) -> None:
        """If the run is tried again, in its own process or in another, it has its devices alone then."""
        run.exhausted = True
        self.handle(ev.MemoryExhausted(run.run_id))
        job = self.scheduler.state.running.get(run.run_id)
        if job is not None and job.placement is not None:
            run.record.request, run.record.placement = job.request, job.placement
            self._save(run)

    def _handle(self, *events: ev.Event | None) -> None:
        for event in events:
            if event is not None:
                self.handle(event)

    def _on_session(self, run_id: str, session: str) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.record.session != session:
            run.record.session = session
            self._save(run)

    def _save(self, run: TrackedRun) -> None:
        """Bring the record up to date. The run must not suffer if the disk is full: an older record will do."""
        try:
            self._records.write(run.folder, run.record)
        except OSError as error:
            self._logger.warning("The record of run %s could not be brought up to date: %s", run.record.name, error)


def _exit_words(report: ExitReport) -> str:
    if report.returncode is None:
        return "its process vanished"
    return "its process ended" if report.returncode == 0 else f"its process ended with code {report.returncode}"
