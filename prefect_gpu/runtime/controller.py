"""The live world: events from runs, drivers and users go to the scheduler; its instructions are carried out here.

The controller knows nothing of Prefect. What Prefect must be asked or told goes through a :class:`.Host`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.actions.adjusting import Adjuster
from prefect_gpu.runtime.actions.eviction import Eviction
from prefect_gpu.runtime.actions.failed_decisions import SET_ASIDE_S, FailedDecisions
from prefect_gpu.runtime.actions.instances import Instances
from prefect_gpu.runtime.actions.launches import Launches
from prefect_gpu.runtime.actions.nodes_wanted import NodesWanted
from prefect_gpu.runtime.activity_log import ActivityLog
from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.checkpoints import RunCheckpoints
from prefect_gpu.runtime.clock import CLOCK, Clock
from prefect_gpu.runtime.devices.cordon_watch import CordonWatch
from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.devices.health_watch import HealthWatch
from prefect_gpu.runtime.devices.outside_watch import OutsideWatch
from prefect_gpu.runtime.disk.event_log import EventLog
from prefect_gpu.runtime.drivers.base import Coming, Driver
from prefect_gpu.runtime.host import Host
from prefect_gpu.runtime.launch.launch import Follower, Launch, Suspend
from prefect_gpu.runtime.launch.records import RecordStore
from prefect_gpu.runtime.launch.report_schema import checked, checked_time
from prefect_gpu.runtime.launch.reports import Measurements, Phases
from prefect_gpu.runtime.launch.saving import RecordSaver
from prefect_gpu.runtime.learning.estimates import Estimates
from prefect_gpu.runtime.metering.consumption import Consumption
from prefect_gpu.runtime.metering.contention_rows import ContentionRows
from prefect_gpu.runtime.metering.idle import IdleTime
from prefect_gpu.runtime.metering.pressure_watch import PressureWatch
from prefect_gpu.runtime.metering.prices import Prices
from prefect_gpu.runtime.metering.slowdown import SlowdownMeter
from prefect_gpu.runtime.metering.waste_watch import WasteFinder
from prefect_gpu.runtime.tasks import Failing, Tasks
from prefect_gpu.runtime.telemetry.energy import CpuEnergy
from prefect_gpu.scheduling import Scheduler, SchedulingError
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model import instructions as do
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.waste.rule import WasteRule
from prefect_gpu.training import protocol

ABILITIES = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True, finishes=True)
"""What this world can carry out."""

_PAUSE_S = 1.0  # after one that was made, though something in it failed


class Controller:
    """Runs one scheduler against one driver.

    Args:
        host: Whoever owns the runs.
        nodes: Machines with their devices and cores, as far as this worker manages them.
        driver: Starts the processes.
        state_dir: Folder for what must survive the worker.
        pool: Name of the pool; records of other pools in the same folder are left alone.
        pool_id: What its runs mark their checkpoints with, so that no other pool removes them.
        profile: Name of a scheduling profile.
        abilities: What the scheduler may ask for: all of :data:`ABILITIES`, or less.
        advertise: The address that runs are told to reach the channel at; None: the one that it listens on.
        checkpoints: Where checkpoints are kept, a folder or ``s3://bucket/prefix``; None: in the state folder.
        leads: Whether this worker may decide now. One that may not any more does nothing; its runs go on.
        heed_outside: Whether GPUs are left alone that programs outside the pool use.
        credentials: ``AWS_...`` variables for that place, which runs get from the host; None: the environment's.
        waste: When a run holds devices for nothing, and what follows.
        prices: What an hour of a device costs.
        clock: The worker's time; tests may replace it.
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
        pool_id: str = "",
        checkpoints: str | None = None,
        leads: Callable[[], bool] = lambda: True,
        cordon_also: Collection[str] = (),
        heed_outside: bool = True,
        credentials: Mapping[str, str] | None = None,
        waste: WasteRule = WasteRule(),  # noqa: B008 -- it is frozen
        prices: Prices = Prices(),  # noqa: B008 -- it is frozen
        clock: Clock = CLOCK,
        logger: logging.Logger | None = None,
    ) -> None:
        self.scheduler = Scheduler(profile, abilities)
        self.runs: dict[str, Launch] = {}  # launched and not yet finalised
        self.estimates = Estimates(self._done_s, lambda: self.fleet)
        self.idle = IdleTime()
        self.activity = ActivityLog()
        self.listeners: tuple[Follower, ...] = ()  # who else hears of every launch
        self.fleet = Fleet(nodes, clock)
        self.consumption = Consumption(self.fleet.named, prices, clock, cpu=CpuEnergy() if driver.local else None)
        self._logger = logger or logging.getLogger("prefect_gpu.controller")
        state = self.scheduler.state
        self.health = HealthWatch(Cordons(state_dir), self.fleet, self._logger, cordon_also)
        self.cordons = CordonWatch(Cordons(state_dir), self.fleet, state, self.handle, self._logger)
        self._heed_outside = heed_outside
        self._host = host
        self._driver = driver
        self._wanted = NodesWanted(state, self.runs, clock)
        driver.may_start, driver.demand, driver.on_faults = leads, self._wanted.demand, self.health.found
        self._records = RecordStore(state_dir, pool, self._logger)
        self._saver = RecordSaver(self._records, self.runs, self._may_act, self._logger)
        place = checkpoints or str(state_dir / "checkpoints")
        self.checkpoints = RunCheckpoints(place, self._logger, credentials, pool_id)
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
            clock=clock,
        )
        driver.channel = lambda: self._channel.url
        self.waste = WasteFinder(
            waste, self.runs, self.fleet.named, self.handle, state, self._saver.save, clock, self._logger
        )
        self._adjuster = Adjuster(self._channel, self.fleet, self.runs, self._saver.save, clock)
        self._eviction = Eviction(self._channel, self._saver.save, self._logger)
        self._instances = Instances(
            driver, self.fleet, self.checkpoints, self._channel, state_dir=state_dir, pool=pool, logger=self._logger
        )
        self._tasks = Tasks(self._logger)
        self._contention = ContentionRows(host, self._may_act, clock, self._tasks, self._logger)
        self._launches = Launches(
            host=host,
            instances=self._instances,
            records=self._records,
            checkpoints=self.checkpoints,
            fleet=self.fleet,
            estimates=self.estimates,
            adjuster=self._adjuster,
            runs=self.runs,
            followers=self._followers,
            state=self.scheduler.state,
            tell=self.handle,
            save=self._saver.save,
            leads=leads,
            clock=clock,
            tasks=self._tasks,
            logger=self._logger,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._failures = FailedDecisions(self._logger)
        self._closing = False

    def _followers(self) -> tuple[Follower, ...]:
        """What is attached to a launch. Phases are told early on: until the scheduler knows, a device may be idle."""
        meter = SlowdownMeter(self.runs.values(), self._contention.keep)
        first = self.idle, self.consumption, Phases(), self._adjuster, self.estimates
        return (*first, Measurements(), meter, self._eviction, self.waste, self.activity, *self.listeners)

    def _may_act(self) -> bool:
        return not self._closing and self._leads()

    def _done_s(self, run_id: str) -> float:
        job = self.scheduler.state.jobs.get(run_id)
        return 0.0 if job is None else job.done_s

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the channel, warm up the driver, and take over what an earlier worker left running."""
        await self._channel.start(waiting=True)
        self._instances.publish()
        await self._driver.start()
        nodes = await self._driver.nodes()
        if nodes is not None:
            self.fleet.change(nodes, self._driver.closed_nodes)
        await asyncio.to_thread(self._records.clean_up)
        self.cordons.heed()
        self.handle(ev.NodesChanged(self.fleet.nodes))
        await self._launches.adopt_all()
        self.cordons.clear()
        self._channel.open()  # not before: whoever comes back must not be told that nobody knows it
        await self._driver.sweep()
        self._tasks.keep(lambda: self._driver.watch_nodes(self._change_nodes), "nodes")
        self._tasks.keep(self.cordons.run, "cordons")
        self._tasks.keep(self.consumption.run, "consumption")
        if self.waste.looks:
            self._tasks.keep(self.waste.run, "waste")
        if self._driver.local and self.fleet.nodes:
            watch = PressureWatch(self.fleet.nodes[0], self.scheduler.state, self.runs, self.handle)
            self._tasks.keep(watch.run, "pressure")
            self._tasks.keep(self.health.run, "health")
        elif self._driver.contained:
            self._tasks.keep(self.health.run_beside, "health")
        if self._heed_outside and (self._driver.local or self._driver.contained):
            outside = OutsideWatch(self.fleet, self.scheduler.state, self.cordons, self.health.found, self._logger)
            self._tasks.keep(outside.run, "programs outside the pool")

    def abandon(self) -> None:
        """Decide nothing any more, from this moment on, and follow no run. To be closed nevertheless."""
        self._closing = True
        self._launches.idle.set()
        self._tasks.cancel()

    async def close(self) -> None:
        """Let go. Running processes go on; the next worker finds them."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._saver.close()
        self._adjuster.close()
        self._eviction.close()
        await self._tasks.close()
        await self._channel.close()
        await self._driver.close()
        self._log.close()

    def ill(self) -> dict[str, Failing]:
        """What goes on beside and has done nothing but fail for long: see :meth:`.Tasks.ill`."""
        return self._tasks.ill()

    @property
    def trouble(self) -> str:
        """What is wrong with decisions, in words; empty: they are taken as they should be."""
        return self._failures.trouble(self._clock())

    @property
    def away(self) -> dict[str, str]:
        """Names of nodes and devices that cannot be used now and may be back, and of devices why, if that is known.

        See :attr:`.Driver.away`. Others are out of service, or are back in it and the scheduler has not heard of that.
        """
        found = dict.fromkeys(sorted(self._driver.away), "")
        found |= {
            device: self.fleet.why_out(device) or ""
            for device in sorted(self.fleet.device_ids)
            if self.fleet.is_out(device)
        }
        unheard = (device.id for device in self.fleet.devices if not self.scheduler.state.has_node(device.id))
        return dict.fromkeys(unheard, "") | found

    def coming(self, job: Job) -> Coming | None:
        """What is being done for a run that waits, where nodes come and go: see :meth:`.Driver.coming`."""
        return self._driver.coming(self._wanted.by(job))

    async def wait_idle(self) -> None:
        """Wait until no launched run is left unfinished."""
        await self._launches.idle.wait()

    def _change_nodes(self, nodes: Sequence[Node]) -> None:
        before = self.fleet.nodes
        self.fleet.change(nodes, self._driver.closed_nodes)
        if self.fleet.nodes != before:
            self.handle(ev.NodesChanged(self.fleet.nodes))

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Tell the scheduler what happened and carry out what it says. While closing, nothing happens any more.

        An error of the scheduler's is logged and goes no further: whoever reports, say, that a run has ended, has more
        to do. A run for which no place could be looked for is set aside for a while, so that others get theirs.
        """
        if not self._may_act():
            return
        now = self._clock()
        self._log.write(event, now)
        pause_s = 0.0
        try:
            instructions = self.scheduler.handle(event, now)
        except SchedulingError as error:
            pause_s = SET_ASIDE_S if error.stalled else _PAUSE_S
            self._failures.note(event, error, now)
            instructions = error.instructions
            if error.stalled and error.job is None:
                reason = f"nothing can be decided at the moment ({error}), which is tried again within a minute"
                instructions = [*instructions, *self.scheduler.tell_stalled(reason, now)]
            if error.job is not None:
                aside = ev.PlacingFailed(error.job, str(error), now + SET_ASIDE_S)
                asyncio.get_running_loop().call_soon(self.handle, aside)
        for instruction in instructions:
            try:
                self._carry_out(instruction, now)
            except Exception:  # the next one concerns another run
                self._logger.exception("What the scheduler decided was not carried out: %s", instruction)
        self._arm_timer(now, pause_s)

    def _carry_out(self, instruction: do.Instruction, now: float) -> None:
        match instruction:
            case do.Launch():
                self._launches.begin(instruction, now)
            case do.Hold():
                self.activity.held(instruction)
                self._host.held(instruction)
            case do.OpenGate(job) | do.SetCores(job) | do.SetShare(job) | do.Finish(job):
                if (launch := self.runs.get(job)) is not None:  # else it has ended, and this is the last word about it
                    self._adjuster.carry_out(launch, instruction)
                    for follower in launch.followers:
                        follower.adjusted(launch, instruction, now)
            case do.Promise() | do.Refuse() | do.AtRisk():
                self._host.answered(instruction)
            case do.Preempt(job) | do.Move(job) | do.Expire(job):
                if (launch := self.runs.get(job)) is not None:
                    self._eviction.begin(launch, instruction)
            case _:  # the abilities that the scheduler was given rule these out
                self._logger.error("The scheduler asks for what this worker cannot do: %s", instruction)

    async def stop(self, run_id: str, grace_seconds: float) -> bool:
        """Stop a launched run's process and everything it started; False if the run is not launched here."""
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.cancelling = True
        run.record.cancelled = True
        self._saver.save(run)
        if run.handle is not None:
            await run.handle.stop(grace_seconds)
        return True

    def suspend(self, run_id: str, reason: str) -> None:
        """Let a launched run save its progress, stop, and leave its devices. Nothing happens if it is not launched."""
        run = self.runs.get(run_id)
        if run is not None:
            self._eviction.begin(run, Suspend(run_id, reason))

    async def instruct(self, run_id: str, kind: str, data: dict[str, Any] | None = None) -> None:
        """Send an instruction to a run over its channel, now or when it connects."""
        await self._channel.instruct(run_id, kind, data or {})

    async def give_credentials(self, run: Launch, credentials: str) -> None:
        """Let a run have newer credentials for its checkpoints; see :data:`.protocol.ENV_CREDENTIALS`."""
        await self._instances.give_credentials(run, credentials)

    def _arm_timer(self, now: float, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.scheduler.next_due()
        if pause_s == SET_ASIDE_S:  # what was due may be due still, and would fail again at once, again and again
            due = now + pause_s
        elif due is not None:
            due = max(due, now + pause_s)
        if due is not None:
            wait_s = max(0.0, due - now) + 0.001
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.handle, ev.TimePassed())

    # -- what runs report -----------------------------------------------------------------------------------------

    async def _on_run_event(self, run_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
        launch, report = self.runs.get(run_id), checked(kind, data)
        at = checked_time(at, self._clock())
        if launch is None or report is None or not launch.note(kind, at, report):
            return
        if kind == protocol.OUT_OF_MEMORY:
            self._exhausted(launch)
        for follower in launch.followers:
            for event in follower.reported(launch, kind, at, report):
                self.handle(event)
        self._host.reported(launch, kind)

    def _exhausted(self, launch: Launch) -> None:
        """If the run is tried again, in its own process or in another, it has its devices alone then."""
        self.handle(ev.MemoryExhausted(launch.run_id))
        job = self.scheduler.state.running.get(launch.run_id)
        if job is not None and job.placement is not None:
            launch.record.request, launch.record.placement = job.request, job.placement
            self._saver.save(launch)

    def _on_session(self, run_id: str, session: str) -> None:
        run = self.runs.get(run_id)
        if run is not None and run.record.session != session:
            run.record.session = session
            self._saver.save(run)
