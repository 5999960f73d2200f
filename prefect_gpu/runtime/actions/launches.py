"""Takes every launch from its grant, or its adoption, to the moment when nothing is left of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from prefect_gpu.runtime.actions.adjusting import Adjuster
from prefect_gpu.runtime.actions.eviction import Eviction
from prefect_gpu.runtime.actions.instances import Instances
from prefect_gpu.runtime.activity_log import LEFT
from prefect_gpu.runtime.channel import new_token
from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.drivers.base import ExitReport, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.supervisor import NO_ROOM
from prefect_gpu.runtime.host import Host, NotOursError
from prefect_gpu.runtime.launch.gang import GangHandle, instances_in
from prefect_gpu.runtime.launch.launch import CONSUMED, OPENED, Follower, Launch, Suspend
from prefect_gpu.runtime.launch.records import UNKNOWN_PLACE, RecordStore
from prefect_gpu.runtime.launch.reports import STATUS_OF_PHASE
from prefect_gpu.runtime.launch.run_environment import devices_of_process
from prefect_gpu.runtime.learning.estimates import Estimates, as_row
from prefect_gpu.runtime.tasks import Tasks
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as do
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.storage.row import HistoryRow, Outcome
from prefect_gpu.training import protocol

_ADOPTED_GRACE_S = 5.0  # for a run whose cancellation an earlier worker had begun
_RETRY_S = 2.0  # from a launch that failed to the next try
_ROOM_S = 30.0  # the same where a disk is full: somebody has to make room
_NO_ROOM_WORDS = "the disk of the worker's state folder is full"


@dataclass(eq=False)
class Launches:
    """All launches of a controller.

    Attributes:
        runs: Every launch of which something is left, by run; filled here.
        followers: Makes what is attached to a new launch.
        state: The scheduler's; only looked at.
        tell: Tells the scheduler what happened.
        save: Brings a launch's record up to date.
        leads: Whether this worker may decide now.
        clock: The worker's time.
        idle: Set while nothing is launched.
    """

    host: Host
    instances: Instances
    records: RecordStore
    checkpoints: RunCheckpoints
    fleet: Fleet
    estimates: Estimates
    adjuster: Adjuster
    runs: dict[str, Launch]
    followers: Callable[[], Iterable[Follower]]
    state: State
    tell: Callable[[ev.Event], None]
    save: Callable[[Launch], None]
    leads: Callable[[], bool]
    clock: Clock
    tasks: Tasks
    logger: logging.Logger
    idle: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.idle.set()

    # -- beginning ------------------------------------------------------------------------------------------------

    def begin(self, grant: do.Launch, now: float) -> None:
        """A run has got its place: record that, and launch it."""
        try:
            record = self.host.describe(grant.job)
            record.placement = grant.placement
            record.behind, record.gated = grant.behind, grant.behind is not None
            record.token = new_token()
            record.known["clock"] = self.clock.identity
            record.times["granted"] = now
            record.known["estimate"] = as_row(self.estimates.of(grant.job))
            record.speeds = self.estimates.speeds(grant.job)
            record.batch_size = self.estimates.batch_size(grant.job, grant.placement)
            devices = self.fleet.named(grant.placement.all_devices)
            if devices:
                record.kind, record.virtual = devices[0].kind, any(device.virtual for device in devices)
            # Written before anything is claimed or started: whatever happens next, a new worker will know of it.
            launch = Launch(record, self.records.create(record))
        except Exception as error:
            full = _is_full(error)
            self.logger.error("Run %s could not be recorded: %s", grant.job, error, exc_info=not full)
            why, again_s = (_NO_ROOM_WORDS, _ROOM_S) if full else (f"it could not be recorded: {error}", _RETRY_S)
            failed = ev.LaunchFailed(grant.job, why, now + again_s)
            loop = asyncio.get_running_loop()
            loop.call_soon(self.tell, failed)
            loop.call_soon(self.host.held, do.Hold(grant.job, "room", why))
            return
        launch.attach(*self.followers())
        self._meet(launch)
        self._each(launch, lambda follower: follower.granted(launch, now))
        self._follow(launch, self._start(launch, Eviction.ahead_of(launch, self.runs.values())))

    def _meet(self, launch: Launch) -> None:
        """Note whom the run shares its devices with: what neighbours do to each other is learned from that."""
        if not launch.record.placement.shared:
            return
        devices = set(launch.record.placement.all_devices)
        for other in self.runs.values():
            if devices.intersection(other.record.placement.all_devices):
                launch.company.append(other)
                other.company.append(launch)

    async def _start(self, launch: Launch, ahead: Sequence[Launch]) -> None:
        for other in ahead:
            await other.gone.wait()
        try:
            spec = await self._prepare(launch)
        except NotOursError as error:
            self._drop(launch, ev.JobEnded(launch.run_id, f"not launched: {error}"))
            return
        except LaunchError as error:
            if isinstance(launch.eviction, do.Preempt):  # it was told to stop meanwhile, which it has
                self._drop(launch, ev.JobStopped(launch.run_id))
            else:
                self._drop(launch, ev.LaunchFailed(launch.run_id, str(error), self.clock() + _RETRY_S))
                if error.explains:
                    self.host.held(do.Hold(launch.run_id, "launch", str(error)))
            return
        except Exception as error:
            await self._cannot_begin(launch, error, "prepared")
            return
        if launch.cancelling or launch.eviction is not None:
            await self._end(launch, ExitReport(returncode=0))
            return
        if not self.leads():  # it was frozen meanwhile, say: whoever leads now deals with the run
            return
        self.save(launch)  # with what was found out meanwhile: the worker may die as soon as the process exists
        cpus = launch.record.placement.cpus
        try:
            launch.handle = await self.instances.launch(launch, spec)
        except LaunchError as error:
            said = f"{launch.record.name} could not be started: {error}"
            self.logger.error("Run %s", said)
            if error.no_room and await self._waits_for_room(launch, error):
                return
            known = ExitReport(127 if FileNotFoundError.__name__ in str(error) else 126, tail=(said,))
            if error.explains or error.away:
                known = ExitReport(None, cause=said, lost=error.away)
            await self._end(launch, known)
            return
        except Exception as error:  # such as that of a disk which is full before anything of it is there
            await self._cannot_begin(launch, error, "started")
            return
        launch.record.times["launched"] = self.clock()
        launch.record.warm = launch.handle.warm
        self.save(launch)
        self._each(launch, lambda follower: follower.started(launch))
        if launch.record.placement.cpus != cpus:  # it was made for those that it had before
            self.adjuster.bind(launch)
        if launch.cancelling or launch.eviction is not None:  # that came while the process was being made
            await launch.handle.stop(0)
        try:
            await self.host.launched(launch)
        except Exception:  # it runs all the same, and must be followed to its end
            self.logger.exception("That run %s was launched could not be told", launch.record.name)
        await self._watch(launch)

    async def _prepare(self, launch: Launch) -> LaunchSpec:
        try:
            await asyncio.to_thread(self.records.sync, launch.folder)
        except OSError as error:
            raise LaunchError(f"it could not be recorded: {error}") from error
        return await self.host.prepare(launch)

    async def _cannot_begin(self, launch: Launch, error: Exception, what: str) -> None:
        """An error that nobody thought of. The run may be claimed already, so it cannot simply wait again: its owner
        learns why it did not start.
        """
        if _is_full(error) and await self._waits_for_room(launch, error):
            return
        self.logger.error("Run %s could not be %s", launch.record.name, what, exc_info=error)
        await self._end(launch, ExitReport(returncode=1, tail=(f"{type(error).__name__}: {error}",)))

    async def _waits_for_room(self, launch: Launch, error: Exception) -> bool:
        """Let a run wait again that could not start because a disk of ours is full. False: it is over meanwhile."""
        self.instances.dismiss(launch)
        if not await self.host.give_way(launch, f"{_NO_ROOM_WORDS} ({error})"):
            return False
        if isinstance(launch.eviction, do.Preempt):
            self._drop(launch, ev.JobStopped(launch.run_id))
        else:
            self._drop(launch, ev.LaunchFailed(launch.run_id, _NO_ROOM_WORDS, self.clock() + _ROOM_S))
        return True

    async def adopt_all(self) -> None:
        """Take over the launches of an earlier worker. None keeps the others from it, whatever is wrong with it.

        Those whose records cannot be read come last: they may have to be given what is left.

        Raises:
            LaunchError: All places where they may run are out of reach.
        """
        found = [(*one, False) for one in self.records]
        for folder, record, damaged in (*found, *((*one, True) for one in self.records.damaged())):
            launch = Launch(record, folder, cancelling=record.cancelled, damaged=damaged)
            try:
                await self._adopt(launch)
            except Exception as error:
                if isinstance(error, LaunchError):
                    raise
                self.logger.exception("Run %s could not be taken over", record.name)

    async def _adopt(self, launch: Launch) -> None:
        record = launch.record
        later_s = self.clock.after(record.known.get("clock"))
        record.times = {name: at + later_s for name, at in record.times.items()}
        if record.request.deadline_at is not None:
            record.request = replace(record.request, deadline_at=record.request.deadline_at + later_s)
        record.known["clock"] = self.clock.identity
        launch.attach(*self.followers())
        if record.leaving:  # the worker before us was about to stop it: it waits again, and is placed afresh
            launch.eviction = do.Preempt(record.run_id, record.leaving)
        try:
            handle = launch.handle = await self.instances.adopt(launch)
        except Exception as error:
            if isinstance(error, LaunchError) and error.away:  # not this run alone
                raise
            self.logger.exception("Run %s cannot be looked for now: it is tried again, and has its place", record.name)
            self._take_over(launch, self._adopt_later(launch))
            return
        if handle is None:
            self._follow(launch, self._return_unlaunched(launch))
            return
        self.logger.info("Found run %s running (pid %s) and adopted it", record.name, handle.pid)
        self._take_over(launch, self._follow_adopted(launch, handle))

    async def _adopt_later(self, launch: Launch) -> None:
        handle = None
        while handle is None:
            await asyncio.sleep(_RETRY_S)
            try:
                handle = launch.handle = await self.instances.adopt(launch)
            except Exception as error:
                self.logger.debug("Run %s still cannot be looked for: %r", launch.record.name, error)
                continue
            if handle is None:
                self.tell(ev.JobEnded(launch.run_id, "it was never started"))
                await self._return_unlaunched(launch)
                return
        self.logger.info("Found run %s running (pid %s) and adopted it", launch.record.name, handle.pid)
        self.adjuster.bind(launch)  # what the scheduler has said meanwhile reached no process
        self.adjuster.started(launch)
        eviction = launch.attached(Eviction)
        why = launch.eviction
        if why is not None and eviction is not None:  # that came while nobody could stop it
            launch.eviction = None  # one that is suspended already would be left as it is
            eviction.begin(launch, why)
        await self._follow_adopted(launch, handle)

    async def _follow_adopted(self, launch: Launch, handle: RunHandle) -> None:
        launch.record.warm = handle.warm  # the worker before us may have died before it knew
        if launch.record.cancelled or launch.record.leaving:  # the worker before us was about to stop it
            grace_s = _ADOPTED_GRACE_S if launch.record.cancelled else 0.0  # else it has saved what it could
            self.tasks.start(handle.stop(grace_s), f"stop-{launch.run_id}")
        await self._watch(launch)

    def _take_over(self, launch: Launch, work: Coroutine[Any, Any, None]) -> None:
        """From here on its place is its own, and it is followed by that work."""
        record = launch.record
        if record.placement == UNKNOWN_PLACE:
            record.placement = self._likely_place(launch)
        if launch.damaged:
            taken = ", ".join(record.placement.all_devices) or "no device"
            self.logger.error("Run %s goes on, and %s cannot be granted until it has ended", record.name, taken)
        self._meet(launch)
        launch.phase = max(
            (phase for phase in protocol.PHASES if phase in record.times),
            key=lambda phase: (record.times[phase], protocol.PHASES.index(phase)),
            default="launching",
        )
        self._each(launch, lambda follower: follower.adopted(launch, self.clock()))
        status = STATUS_OF_PHASE.get(launch.phase, Status.LAUNCHING)
        submitted = record.times.get("submitted", 0.0)
        self._follow(launch, work)
        self.tell(
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
                launch.held_s(self.clock()),
                record.known.get("promised"),
                bool(record.known.get("in_time")),
                bool(record.known.get(OPENED)),
            )
        )
        job = self.state.running.get(record.run_id)
        self.adjuster.make_up(launch, behind=job.behind if job is not None else None)
        for event in self.estimates.adopted_anew(launch, self.fleet.kind):
            self.tell(event)

    def _likely_place(self, launch: Launch) -> Placement:
        """Where a launch is of which no record says it: where its process was told, or all that is free there."""
        pid = launch.handle.pid if launch.handle is not None else None
        alone, nodes, told = instances_in(launch.folder) == 1, self.fleet.nodes, tuple[str, ...]()
        if alone and isinstance(pid, str):  # a container, `node:container`
            nodes = tuple(node for node in nodes if node.id == pid.partition(":")[0])
        elif alone and isinstance(pid, int):
            told = devices_of_process(pid)
        free = {node.id: tuple(device.id for device in self.state.free_devices(node.id)) for node in nodes}
        parts = [Placement(node, told or devices, ()) for node, devices in free.items()]
        return replace(parts[0], others=tuple(parts[1:])) if parts else UNKNOWN_PLACE

    async def _return_unlaunched(self, launch: Launch) -> None:
        self.instances.dismiss(launch)
        settled = False
        try:
            ended = await self.host.unlaunched(launch)
            if ended is not None:
                outcome, message, at = ended
                await self._keep(launch, ExitReport(None), self.clock() if at is None else at, outcome, message)
            settled = True
        except Exception:
            self.logger.exception("Run %s could not be given back; the next worker tries again", launch.record.name)
        self._release(launch, settled=settled)

    def _follow(self, launch: Launch, work: Coroutine[Any, Any, None]) -> None:
        self.runs[launch.run_id] = launch
        self.idle.clear()
        self.tasks.start(work, f"run-{launch.run_id}")

    # -- ending ---------------------------------------------------------------------------------------------------

    async def _watch(self, launch: Launch) -> None:
        assert launch.handle is not None
        if isinstance(launch.handle, GangHandle):
            launch.handle.on_broken = partial(self.host.falls_apart, launch)
        await self._end(launch, await launch.handle.wait())

    async def _end(self, launch: Launch, report: ExitReport) -> None:
        """The process is gone: free its devices first, then make everybody know.

        Whatever goes wrong on the way, the devices are free afterwards. If the run could not be settled, its record
        stays, and the next worker tries again.
        """
        ended_at = self._ended_at(launch, report)
        report = replace(report, ended_at=ended_at)
        self.instances.dismiss(launch)
        self._each(launch, lambda follower: follower.ended(launch, ended_at))
        if report.carries_on and launch.record.request.preemptible and launch.eviction is None:
            why = report.cause.rstrip(".")
            launch.eviction, launch.record.leaving = do.Preempt(launch.run_id, why), why
        try:
            if await self._carries_on(launch, report, ended_at):
                return
        except Exception:
            self.logger.exception("Run %s cannot carry on elsewhere, and so has ended", launch.record.name)
        suspended = isinstance(launch.eviction, Suspend)
        self.tell(ev.JobEnded(launch.run_id, ev.SUSPENDED if suspended else _exit_words(report)))
        settled = False
        try:
            await self._settle(launch, report, ended_at)
            settled = True
        except Exception:
            self.logger.exception("Run %s could not be settled; the next worker tries again", launch.record.name)
        self._release(launch, settled=settled)

    async def _settle(self, launch: Launch, report: ExitReport, ended_at: float) -> None:
        outcome, message = await self.host.finalise(launch, report)
        left = outcome is None and isinstance(launch.eviction, Suspend)
        self._over(launch, ended_at, LEFT if left else outcome, message)
        if outcome is not None:
            await self._keep(launch, report, ended_at, outcome, message)

    async def _keep(self, launch: Launch, report: ExitReport, ended_at: float, outcome: Outcome, message: str) -> None:
        """What is kept of a launch whose run is over: a row, and its checkpoints where they may be needed again."""
        # A failed run may be tried again from where it was; one that was deleted may be back with a restored database.
        if outcome in ("completed", "cancelled") and not launch.deleted:
            await asyncio.to_thread(self.checkpoints.remove, launch.run_id)
        devices = self.fleet.named(launch.record.placement.all_devices)
        try:
            row = launch.history_row(
                outcome=outcome, message=message, report=report, devices=devices, ended_at=ended_at
            )
            await asyncio.to_thread(self.host.record_history, self._dated(row))
        except Exception:
            self.logger.exception("The history row of run %s could not be written", launch.record.name)

    def _ended_at(self, launch: Launch, report: ExitReport) -> float:
        """The worker's time of a run's end. Whoever saw it had only the machine's clock, which may have been set."""
        now = self.clock()
        if report.ended_at is None:
            return now
        # Until when it was counted what it takes is nothing that the process has told.
        told = [at for name, at in launch.record.times.items() if name != CONSUMED]
        return min(now, max([self.clock.of(report.ended_at), *told]))

    def _dated(self, row: HistoryRow) -> HistoryRow:
        """With its moments in Unix seconds."""
        moments = ("submitted_at", "granted_at", "started_at", "ended_at", "deadline_at")
        at = {name: getattr(row, name) for name in moments}
        dated: dict[str, Any] = {name: self.clock.unix(one) for name, one in at.items() if one is not None}
        return replace(row, **dated)

    async def _carries_on(self, launch: Launch, report: ExitReport, ended_at: float) -> bool:
        """Let a run that left its place wait again, or start it where it is to carry on. False if it has ended."""
        why, last = launch.eviction, launch.phase in (protocol.SAVING, protocol.FINISHED)
        # A run that was saving its result may have been stopped all the same: the two had crossed each other.
        if last and not (launch.record.leaving and (report.returncode or report.carries_on)):
            return False
        if why is None or launch.cancelling or isinstance(why, do.Expire):
            return False
        if not await self.host.give_way(launch, why.reason):
            return False
        self._over(launch, ended_at, LEFT, why.reason)
        self._release(launch, carries_on=True)
        if isinstance(why, do.Move):
            self.begin(do.Launch(launch.run_id, why.placement, why.reason), self.clock())
        else:
            self.tell(ev.JobStopped(launch.run_id))
        return True

    def _drop(self, launch: Launch, event: ev.Event) -> None:
        self.tell(event)
        self._release(launch, carries_on=not isinstance(event, ev.JobEnded))

    def _over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
        self._each(launch, lambda follower: follower.over(launch, at, outcome, message))

    def _each(self, launch: Launch, tell: Callable[[Follower], None]) -> None:
        """Tell all that are attached to a launch; an error of one keeps nothing from the others."""
        for follower in launch.followers:
            try:
                tell(follower)
            except Exception:
                self.logger.exception("%s failed on run %s", type(follower).__name__, launch.record.name)

    def _release(self, launch: Launch, *, carries_on: bool = False, settled: bool = True) -> None:
        """Nothing is left of the launch; from here on the run may be submitted again, or carries on as it is.

        Args:
            settled: Whether its record is needed no more.
        """
        if settled:
            self.records.remove(launch.folder)
        if self.runs.get(launch.run_id) is launch:
            del self.runs[launch.run_id]
        if not self.runs:
            self.idle.set()
        self._each(launch, lambda follower: follower.released(launch, self.clock(), carries_on))
        self.host.released(launch)


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in NO_ROOM


def _exit_words(report: ExitReport) -> str:
    if report.returncode is None:
        return "its process vanished"
    return ev.ENDED_WELL if report.returncode == 0 else f"{ev.ENDED_WELL} with code {report.returncode}"
