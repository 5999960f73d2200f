"""A world in which everything can go wrong: real controllers, one after another, and simulated processes.

What is simulated stands at the border of the machine: processes (they obey the rules of ``prefect_gpu.training``: the
gate, the device's lock, the outbox that keeps what was not acknowledged), the channel, time, and the owner of the runs.
The controller, its scheduler and its records on disk are the real ones. Nothing waits: time is a number.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.controller import Controller
from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.runtime.host import NotOursError
from prefect_gpu.runtime.launch.launch import Launch
from prefect_gpu.runtime.launch.records import RecordStore, RunRecord
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import AtRisk, Hold, Promise, Refuse
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.storage.row import ContentionRow, HistoryRow, Outcome
from prefect_gpu.training import protocol

PATIENCE_S = 60.0  # a gated run's, for a controller that it cannot reach (training/channel/link.py)
_GIB = 1 << 30


class WorkerKilled(BaseException):
    """The worker is gone: nothing of it happens any more."""


class _Logger(logging.Logger):
    """An error with a traceback is a bug, unless it is the worker's death."""

    def __init__(self, world: World) -> None:
        super().__init__("faults", logging.CRITICAL + 1)
        self.world = world

    def error(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:
        if isinstance(exc_info, BaseException) and not isinstance(exc_info, WorkerKilled):
            self.world.broken = self.world.broken or exc_info


class _Inline(ThreadPoolExecutor):
    """Does at once what others do in a thread, so that the world stands still between two steps."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock is the world's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._world_clock = clock
        super().__init__()
        self.set_default_executor(_Inline(1))
        self.set_exception_handler(lambda loop, context: None)  # what dies with its worker

    def time(self) -> float:
        return self._world_clock()

    def run_dry(self) -> None:
        """Go on until nothing can happen before time passes."""
        for _ in range(10_000):
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return
        raise AssertionError("the worker never comes to rest")


class Process:
    """A training process. Its stages: starting, preparing, gate, lock, training, saving, finished, gone."""

    def __init__(self, world: World, spec: LaunchSpec) -> None:
        self.world, self.run_id, self.spec = world, spec.run_id, spec
        self.devices = [device["id"] for device in json.loads(spec.env[protocol.ENV_DEVICES])]
        self.shared = spec.env.get(protocol.ENV_SHARED) == "1"
        self.gated = spec.env.get(protocol.ENV_GATED) == "1"
        self.gate = not self.gated
        self.stage = "starting"
        self.save_asked = False
        self.tries = 0
        self.report: ExitReport | None = None
        self.outbox: list[tuple[int, str, float, dict[str, Any]]] = []
        self.sent = 0
        self.broken_since: float | None = world.now
        self.cut = False
        self.session = f"session of {spec.run_dir.name}"

    def go(self) -> None:
        """The flow's next step."""
        if self.stage == "starting":
            self.prepare()
        elif self.stage == "preparing":
            if not (self.gate and self.try_lock()):
                self._post("preparing", waiting=True)
                self.stage = "gate"
                self.wait()
            else:
                self._train()
        elif self.stage == "training" and self.save_asked:
            self.save_asked = False
            self.post(protocol.CHECKPOINT, {"step": 1, "path": "/checkpoint", "bytes": 1, "seconds": 0.1})
        elif self.stage == "training":
            self.world.unlock(self)
            self.stage = "saving"
            self._post("saving")
        elif self.stage == "saving":
            self.stage = "finished"
            self._post("finished")
        elif self.stage == "finished":
            self.end(0)

    def prepare(self) -> None:
        """Begin, or begin again in the same process: a retry."""
        self.tries += 1
        self.stage = "preparing"
        self._post("preparing")

    def wait(self) -> None:
        """Look whether waiting is over."""
        if self.stage == "gate":
            broken = self.broken_since is not None and self.world.now - self.broken_since > PATIENCE_S
            if self.gate or broken:
                self.stage = "lock"
        if self.stage == "lock" and self.try_lock():
            self._train()

    def try_lock(self) -> bool:
        """See DeviceLock."""
        return self.world.lock(self)

    def _train(self) -> None:
        self.stage = "training"
        self._post("training", steps=100)

    def end(self, code: int | None) -> None:
        """The process is gone, and with it its locks."""
        if self.report is None:
            self.report = ExitReport(code, ended_at=None if code is None else self.world.now)
            self.world.unlock(self)
            self.stage = "gone"
            self.outbox.clear()

    def _post(self, phase: str, **more: Any) -> None:
        self.post(protocol.PHASE, {"phase": phase, "step": 0, **more})

    def post(self, kind: str, data: dict[str, Any]) -> None:
        """An event; it waits in the outbox until it is acknowledged."""
        self.sent += 1
        self.outbox.append((self.sent, kind, self.world.now, data))


class _Handle(RunHandle):
    def __init__(self, process: Process, loop: asyncio.AbstractEventLoop) -> None:
        self.run_id, self.pid, self.warm = process.run_id, 4711, False
        self.process = process
        self.priority: float | None = None
        self._gone: asyncio.Future[None] = loop.create_future()

    def look(self) -> None:
        if self.process.report is not None and not self._gone.done():
            self._gone.set_result(None)

    async def wait(self) -> ExitReport:
        self.look()
        await asyncio.shield(self._gone)
        assert self.process.report is not None
        return self.process.report

    def set_priority(self, weight: float) -> bool:
        self.priority = weight
        return True

    async def stop(self, grace_seconds: float) -> None:
        self.process.end(-15)
        self.look()


class _Orders(Reaction):
    """Makes runs leave their place because the world wants it; what policies want it for is no matter here."""

    def __init__(self, world: World) -> None:
        self.world = world

    def react(self, event: ev.Event, decision: Decision) -> bool:
        stopped = False
        while self.world.orders:
            run_id, how = self.world.orders.pop()
            job = decision.state.running.get(run_id)
            if job is None or job.placement is None or not decision.may_stop(job):
                continue
            free = [device.id for device in decision.state.free_devices(job.placement.node)]
            if how == "move" and free and job.placement.devices and job.status is Status.TRAINING:
                decision.move(job, dataclasses.replace(job.placement, devices=(free[0],)), "it is to move")
                self.world.moved += 1
            else:
                decision.preempt(job, "it is to leave")
                stopped = True
        return stopped


class _Channel:
    """Brings events and instructions; what the network does to them is up to the world."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.url = "ws://nowhere"
        self.runs: dict[str, tuple[str, str | None]] = {}
        self.acked: dict[str, int] = {}
        self.pending: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    async def start(self, *, waiting: bool = False) -> None:
        pass

    def open(self) -> None:
        pass

    async def close(self) -> None:
        self.runs.clear()

    def admit(self, run_id: str, token: str, *, session: str | None = None) -> None:
        self.runs[run_id] = (token, session)
        self.pending.setdefault(run_id, [])
        self.acked.setdefault(run_id, 0)

    def revoke(self, run_id: str) -> None:
        for kept in (self.runs, self.acked, self.pending):
            kept.pop(run_id, None)

    async def instruct(self, run_id: str, kind: str, data: dict[str, Any]) -> bool:
        self.worker.spark()
        if run_id not in self.runs:
            return False
        self.pending[run_id].append((kind, data))
        return True

    def has_news(self, process: Process) -> bool:
        """Whether there is something to carry, be it that the two have found each other."""
        known = self.runs.get(process.run_id)
        if known is None or process.cut or process.stage in ("starting", "gone"):
            return False
        news = known[1] != process.session or process.broken_since is not None
        return bool(news or self.pending[process.run_id] or process.outbox)

    def carry(self, process: Process) -> bool:
        """Let one thing pass; False if there is nothing, or no connection."""
        known = self.runs.get(process.run_id)
        if known is None or process.cut or process.stage in ("starting", "gone"):
            return False
        token, session = known
        assert token == process.spec.env[protocol.ENV_TOKEN], "a process with an old token"
        process.broken_since = None
        if session is None:
            self.runs[process.run_id] = (token, process.session)
            self.worker.controller._on_session(process.run_id, process.session)
        else:
            assert session == process.session, f"{process.run_id} has two processes"
        if self.pending[process.run_id]:
            kind, data = self.pending[process.run_id].pop(0)
            if kind in (protocol.OPEN_GATE, protocol.STOP):
                process.gate = True
            if kind == protocol.SAVE_CHECKPOINT:
                process.save_asked = True
            return True
        if not process.outbox:
            return False
        number, kind, at, data = process.outbox[0]
        if number > self.acked[process.run_id]:
            coroutine = self.worker.controller._on_run_event(process.run_id, kind, at, data)
            try:
                coroutine.send(None)
            except StopIteration:
                pass
            else:
                raise AssertionError("an event waits for something")
        self.worker.spark()  # handled, and not acknowledged
        if process.run_id in self.acked:
            self.acked[process.run_id] = number
        process.outbox.pop(0)
        return True


class _Records(RecordStore):
    def __init__(self, worker: Worker, folder: Path) -> None:
        super().__init__(folder, "pool")
        self.worker = worker

    def write(self, folder: Path, record: RunRecord) -> None:
        self.worker.spark()
        world = self.worker.world
        world.unwritten.add(record.run_id)
        world.fill("write")
        super().write(folder, record)
        world.unwritten.discard(record.run_id)
        self.worker.spark()

    def sync(self, folder: Path) -> None:
        self.worker.spark()
        self.worker.world.fill("sync")
        super().sync(folder)

    def remove(self, folder: Path) -> None:
        self.worker.spark()
        super().remove(folder)
        self.worker.spark()


class _Driver(Driver):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.handles: list[_Handle] = []

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        world = self.worker.world
        await world.dawdle("launch")
        self.worker.spark()
        if world.refusals.pop("launch", None):
            raise LaunchError("the driver refuses")
        if world.refusals.pop("room", None):
            full = LaunchError("No space left on device")
            full.no_room = True
            raise full
        process = world.begin(spec)
        self.worker.spark()
        await world.dawdle("answer")
        return self._handle(process)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        self.worker.spark()
        self.worker.world.fill("adopt")
        process = self.worker.world.processes.get(run_dir)
        return None if process is None else self._handle(process)

    def _handle(self, process: Process) -> _Handle:
        handle = _Handle(process, asyncio.get_running_loop())
        self.handles.append(handle)
        return handle


class _Host:
    """The owner of the runs, as Prefect is: it remembers, whatever happens to the worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker, self.world = worker, worker.world
        self.finalised: set[Path] = set()  # by this worker

    def describe(self, run_id: str) -> RunRecord:
        request, queue, _ = self.world.submitted[run_id]
        times = {"submitted": self.world.now}
        place = Placement("", (), ())
        record = RunRecord(run_id, run_id, "pool", queue, "", request, place, times=times)
        record.known = {"flow_name": "train", "features": {}}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        await self.world.dawdle("prepare")
        self.worker.spark()
        if self.world.refusals.pop("prepare", None):
            raise LaunchError("Prefect is out of reach")
        if self.world.refusals.pop("claim", None) or run.run_id in self.world.over:
            self.world.over.setdefault(run.run_id, "taken by another worker")
            raise NotOursError("another worker has it")
        if run.run_id in self.world.cancelling:
            self.world.over[run.run_id] = "cancelled"
            raise NotOursError("it is cancelled")
        self.world.claimed.add(run.run_id)
        self.worker.spark()
        self.world.fill("work folder")
        return LaunchSpec(run.run_id, run.folder, ("python",), {}, run.folder)

    async def launched(self, run: Launch) -> None:
        self.worker.spark()

    async def falls_apart(self, run: Launch) -> None:
        raise AssertionError("there are no gangs here")

    def answered(self, answer: Promise | Refuse | AtRisk) -> None:
        """See :class:`.Host`."""
        match answer:
            case Promise(job, probability):
                self.world.promised[job] = probability
            case Refuse(job):
                self.world.over[job] = "refused"

    def held(self, hold: Hold) -> None:
        pass

    def reported(self, run: Launch, kind: str) -> None:
        pass

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Outcome | None, str]:
        await self.world.dawdle("finalise")
        self.worker.spark()
        assert run.folder not in self.finalised, f"{run.run_id} was finalised twice by one worker"
        self.finalised.add(run.folder)
        if run.run_id in self.world.suspended and run.run_id not in self.world.cancelling:
            self.world.claimed.discard(run.run_id)
            self.world.left.add(run.run_id)
            self.worker.spark()
            return None, "suspended"
        self.world.over.setdefault(run.run_id, f"ended with {report.returncode}")
        self.worker.spark()
        return ("completed" if report.returncode == 0 else "crashed"), ""

    async def give_way(self, run: Launch, reason: str) -> bool:
        await self.world.dawdle("finalise")
        self.worker.spark()
        if {run.run_id} & (self.world.over.keys() | self.world.cancelling | self.world.suspended):
            return False
        self.world.claimed.discard(run.run_id)
        self.world.left.add(run.run_id)
        self.worker.spark()
        return True

    async def unlaunched(self, run: Launch) -> None:
        self.worker.spark()
        self.world.claimed.discard(run.run_id)

    def released(self, run: Launch) -> None:
        self.worker.spark()
        self.worker.offer(run.run_id)

    def record_contention(self, row: ContentionRow) -> None:
        pass

    def record_history(self, row: HistoryRow) -> None:
        self.worker.spark()


class Worker:
    """One incarnation: a controller on an event loop that nothing else uses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.dead = False
        self.loop = _Loop(lambda: world.now)
        self.host = _Host(self)
        self.driver = _Driver(self)
        self.controller = Controller(
            self.host,
            nodes=(world.node,),
            driver=self.driver,
            state_dir=world.folder,
            pool="pool",
            profile="adaptive",
            clock=Clock(lambda: world.now, lambda: world.now),
            logger=_Logger(world),
        )
        self.channel = _Channel(self)
        self.controller._channel = self.channel  # type: ignore[assignment]
        self.controller._adjuster._channel = self.channel  # type: ignore[assignment]
        self.controller._eviction._channel = self.channel  # type: ignore[assignment]
        self.controller._instances._channel = self.channel  # type: ignore[assignment]
        records = _Records(self, world.folder)
        self.controller._records = self.controller._launches.records = self.controller._saver._records = records
        self.controller.scheduler.profile.reactions[1].margin = world.margin  # type: ignore[attr-defined]
        scheduler = self.controller.scheduler
        reactions = (*scheduler.profile.reactions, _Orders(world))
        scheduler.profile = dataclasses.replace(scheduler.profile, reactions=reactions)
        carry_out = self.controller._carry_out

        def checked(instruction: Any, now: float) -> None:
            world.judge(instruction)
            carry_out(instruction, now)

        self.controller._carry_out = checked  # type: ignore[method-assign]

    def spark(self) -> None:
        """The worker comes to a border of its process: it may die here, and if it is dead already, stays so."""
        if self.world.fuse is not None and not self.dead:
            self.world.fuse -= 1
            if self.world.fuse < 0:
                self.world.fuse, self.dead = None, True
        if self.dead:
            raise WorkerKilled

    def start(self) -> None:
        """Adopt what is there, then take in what waits."""

        async def main() -> None:
            await self.controller.start()
            if self.world.quotas is not None:
                self.controller.handle(ev.QuotasChanged(self.world.quotas))
            for run_id, (_, _, estimate) in self.world.submitted.items():
                self.offer(run_id)
                if run_id in self.world.cancelling and run_id in self.controller.runs:
                    await self.controller.stop(run_id, 5.0)
                if run_id in self.world.suspended:
                    self.controller.suspend(run_id, "it is suspended")
                if run_id in self.controller.runs:
                    self.controller.handle(ev.JobEstimated(run_id, estimate))

        task = self.loop.create_task(main())
        self.run()
        if not self.dead and task.done() and task.exception() is not None:
            raise task.exception() or AssertionError

    def offer(self, run_id: str) -> None:
        """Prefect says that a run waits, if it does."""
        controller = self.controller
        if run_id in self.world.over or run_id in self.world.claimed or run_id in controller.runs:
            return
        if run_id in self.world.suspended:
            return
        if run_id in self.world.cancelling:
            self.world.over[run_id] = "cancelled"
            controller.handle(ev.JobWithdrawn(run_id, "cancelled"))
            return
        request, queue, estimate = self.world.submitted[run_id]
        promised = self.world.promised.get(run_id)
        controller.handle(ev.JobSubmitted(run_id, request, queue, 0.0, 0.0, run_id, estimate, promised))

    def call(self, function: Callable[[], Any]) -> None:
        """Let something happen in the worker, and go on until it rests."""
        if not self.dead:
            self.loop.call_soon(self._guarded, function)
            self.run()

    def _guarded(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except WorkerKilled:
            pass
        except BaseException as error:
            self.world.broken = error

    def run(self) -> None:
        """Let the worker work until it rests; what it says is heard, and what is reported is taken in."""
        while not self.dead:
            self.loop.run_dry()
            for handle in self.driver.handles:
                handle.look()
            moved = False
            for process in list(self.world.processes.values()):
                process.wait()
                before = len(process.outbox)
                if self.channel.has_news(process):
                    self.loop.call_soon(self._guarded, lambda process=process: self.channel.carry(process))
                had = bool(self.channel.pending.get(process.run_id))
                if self.loop._ready:  # type: ignore[attr-defined]
                    self.loop.run_dry()
                moved |= len(process.outbox) != before or (
                    had and not process.cut and process.stage not in ("starting", "gone")
                )
            if self.world.broken is not None:
                raise self.world.broken
            if not moved and not self.loop._ready:  # type: ignore[attr-defined]
                return

    def kill(self) -> None:
        """kill -9."""
        self.dead = True
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()


def _node(devices: int) -> Node:
    names = [f"virtual-{number}" for number in range(devices)]
    return Node("here", tuple(Device(name, "virtual", 8 * _GIB, virtual=True) for name in names), (0, 1))


class World:
    """Everything outside the worker, and the judge of what happens.

    Args:
        folder: The state folder; empty.
        devices: How many the machine has.
    """

    def __init__(self, folder: Path, devices: int = 1) -> None:
        self.folder = folder
        self.node = _node(devices)
        self.cordons = Cordons(folder)
        self.now = 1_000_000.0
        self.submitted: dict[str, tuple[Request, str, Estimate]] = {}
        self.claimed: set[str] = set()
        self.cancelling: set[str] = set()
        self.suspended: set[str] = set()
        self.over: dict[str, str] = {}
        self.promised: dict[str, float] = {}
        self.orders: list[tuple[str, str]] = []  # runs that are to leave, and how
        self.left: set[str] = set()  # runs that left once
        self.moved = 0
        self.processes: dict[Path, Process] = {}
        self.refusals: dict[str, bool] = {}
        self.unwritten: set[str] = set()  # runs whose records are older than what their worker knows
        self.forgotten: set[str] = set()  # those of which a worker was killed then
        self.slow: dict[str, asyncio.Event | None] = {}
        self.quotas: Quotas | None = None
        self.fuse: int | None = None
        self.broken: BaseException | None = None
        self.behind = 0  # launches behind others
        self.held_up = 0  # times that a lock, and not the gate, kept a run from training
        from prefect_gpu.scheduling.prescheduling.successor import Margin

        self.margin = Margin()
        for _ in range(20):  # enough for the prior not to count any more
            self.margin.learn(2.0)
        self._locks: dict[str, list[Process]] = {}
        self.worker = Worker(self)
        self.worker.start()

    # -- what the machine does ----------------------------------------------------------------------------------------

    def lock(self, process: Process) -> bool:
        """Lock all of a process's devices, or none."""
        for device in process.devices:
            others = [other for other in self._locks.get(device, ()) if other is not process]
            if others and not (process.shared and all(other.shared for other in others)):
                self.held_up += 1
                return False
        for device in process.devices:
            holders = self._locks.setdefault(device, [])
            if process not in holders:
                holders.append(process)
        return True

    def unlock(self, process: Process) -> None:
        """Whatever the process had locked is free."""
        for holders in self._locks.values():
            if process in holders:
                holders.remove(process)

    def begin(self, spec: LaunchSpec) -> Process:
        """A process exists."""
        earlier = [process for process in self.processes.values() if process.run_id == spec.run_id]
        if spec.run_id in self.left:
            earlier = [process for process in earlier if process.stage != "gone"]
        assert not earlier, f"{spec.run_id} is started again: {earlier[0].stage}"
        assert spec.run_id not in self.over, f"{spec.run_id} is started although it is {self.over[spec.run_id]}"
        process = self.processes[spec.run_dir] = Process(self, spec)
        self.forgotten.discard(spec.run_id)
        if not process.gated:
            self._nobody_trains_beside(process)
        return process

    def fill(self, what: str) -> None:
        """Raise an error if the disk is full for that now."""
        if self.refusals.pop(what, None):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def dawdle(self, what: str) -> None:
        """Wait if that takes long now."""
        if what in self.slow:
            event = self.slow[what] = self.slow[what] or asyncio.Event()
            await event.wait()

    # -- the judge ----------------------------------------------------------------------------------------------------

    def _nobody_trains_beside(self, process: Process) -> None:
        """Of those that have kept to their order: one that tries again after it saved is kept apart by the lock."""
        for other in self.processes.values():
            if other is process or other.stage != "training" or other.tries > 1:
                continue
            both = set(other.devices).intersection(process.devices)
            assert not both or (other.shared and process.shared), f"{process.run_id} may train beside {other.run_id}"

    def judge(self, instruction: Any) -> None:
        """Look at what the scheduler says."""
        kind = type(instruction).__name__
        if kind == "Launch":
            self.behind += instruction.behind is not None
        elif kind == "OpenGate":
            for process in self.processes.values():
                if process.run_id == instruction.job and process.stage != "gone":
                    self._nobody_trains_beside(process)

    def check(self) -> None:
        """Everything that must hold after each step."""
        if self.broken is not None:
            raise self.broken
        if not self.worker.dead:
            self.worker.controller.scheduler.state.check_invariants()
        for device in self.node.devices:
            training = [p for p in self.processes.values() if p.stage == "training" and device.id in p.devices]
            assert len(training) < 2 or all(p.shared for p in training), f"{[p.run_id for p in training]} train at once"
        if self.worker.dead:
            return
        controller = self.worker.controller
        jobs = controller.scheduler.state.jobs
        for run_id in self.submitted:
            places = (
                run_id in controller.runs,
                run_id in jobs and jobs[run_id].status is Status.WAITING,
                run_id in self.over and run_id not in controller.runs,
                run_id in self.suspended and run_id not in controller.runs,
            )
            assert sum(places) == 1, f"{run_id}: launched, waiting, over, suspended = {places}"
        for process in self.processes.values():
            self._check_process(process)
            run = controller.runs.get(process.run_id)
            if process.run_id in self.cancelling and run is not None and run.handle is not None:
                assert process.stage == "gone", f"{process.run_id} goes on although it is cancelled"

    def _check_process(self, process: Process) -> None:
        """What the worker owes a process that it is connected to, when it has nothing more to do."""
        run = self.worker.controller.runs.get(process.run_id)
        if process.cut or process.stage in ("starting", "gone"):
            return
        assert process.run_id in self.worker.channel.runs, f"{process.run_id} is told that nobody knows it"
        if run is None or process.stage not in ("gate", "training"):
            return
        if process.stage == "training":
            assert run.record.behind is None, f"{process.run_id} trains, and its record says that it waits"
            handle = run.handle
            assert not isinstance(handle, _Handle) or handle.priority in (None, 1.0), "it trains with low priority"
        else:
            done = ("saving", "finished", "gone")
            others = [p for p in self.processes.values() if p is not process and (p.stage not in done or p.cut)]
            ahead = [p.run_id for p in others if set(p.devices).intersection(process.devices)]
            before = self.worker.controller.runs.get(run.record.behind or "")
            # Who takes over does not tell the scheduler that a run was being stopped, until Prefect says it waits.
            stopped = before is not None and bool(before.record.leaving) and "finalise" in self.slow
            sought = before is not None and before.handle is None  # nobody can see its end yet
            assert ahead or stopped or sought, f"{process.run_id} waits at its gate for nobody"
            # What could not be written before its worker was killed, the next one does not know.
            assert run.waiting or process.run_id in self.forgotten, f"{process.run_id} waits, and is said to begin"

    # -- what happens -------------------------------------------------------------------------------------------------

    def submit(self, request: Request, queue: str, estimate: Estimate) -> str:
        """A run waits."""
        run_id = f"run-{len(self.submitted)}"
        self.submitted[run_id] = (request, queue, estimate)
        self.do(lambda: self.worker.offer(run_id))
        return run_id

    def do(self, function: Callable[[], Any]) -> None:
        """Something happens in the worker; if that kills it, the next one starts."""
        self.worker.call(function)
        self.revive()

    def revive(self) -> None:
        """There is always a worker again."""
        while self.worker.dead:
            self.worker.kill()
            self.forgotten |= self.unwritten
            self.unwritten.clear()
            for name in self.slow:
                self.slow[name] = None  # nobody waits any more
            for process in self.processes.values():
                if process.broken_since is None:
                    process.broken_since = self.now
            self.worker = Worker(self)
            self.worker.start()

    def kill_worker(self) -> None:
        """kill -9, between two steps."""
        self.worker.dead = True
        self.revive()

    def pass_time(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self.do(lambda: None)

    def cancel(self, run_id: str) -> None:
        """The user cancels a run."""
        controller = self.worker.controller
        if run_id in self.over:
            return
        self.cancelling.add(run_id)
        self.suspended.discard(run_id)
        if run_id in controller.runs:

            def begin() -> None:
                controller._tasks.start(controller.stop(run_id, 5.0))

            self.do(begin)
        elif run_id not in self.claimed:
            self.over[run_id] = "cancelled"
            self.do(lambda: controller.handle(ev.JobWithdrawn(run_id, "cancelled")))

    def suspend(self, run_id: str) -> None:
        """The user suspends a run that runs."""
        if run_id in self.claimed and run_id not in self.over and run_id not in self.cancelling:
            self.suspended.add(run_id)
            self.do(lambda: self.worker.controller.suspend(run_id, "it is suspended"))

    def resume(self, run_id: str) -> None:
        """It is to carry on."""
        self.suspended.discard(run_id)
        self.do(lambda: self.worker.offer(run_id))

    def notice(self, in_s: float | None) -> None:
        """The machine is to be gone in so many seconds; None: it stays after all."""
        node = self.node = replace(self.node, ends_at=None if in_s is None else self.now + in_s)

        def tell() -> None:
            self.worker.controller.fleet.change((node,))
            self.worker.controller.handle(ev.NodesChanged((node,)))

        self.do(tell)

    def cordon(self, number: int) -> None:
        """A device is taken out of service."""
        self.cordons.add({self.node.devices[number % len(self.node.devices)].id: "its fan is loud"})
        self.do(lambda: self.worker.controller.cordons.look())

    def uncordon(self) -> None:
        """All devices are put back."""
        self.cordons.remove(*self.cordons.read())
        self.do(lambda: self.worker.controller.cordons.look())

    def order(self, run_id: str, how: str) -> None:
        """A run is to leave its place: to ``"wait"``, or to ``"move"``."""
        self.orders.append((run_id, how))
        self.do(lambda: self.worker.controller.handle(ev.TimePassed()))

    def set_slow(self, what: str) -> None:
        """From now on, something takes long."""
        self.slow.setdefault(what, None)

    def hurry(self) -> None:
        """What took long is done."""
        events, worker = [event for event in self.slow.values() if event is not None], self.worker
        self.slow.clear()
        for event in events:
            if self.worker is worker:  # else it died of the event before, and nobody waits for this one
                self.do(event.set)

    def set_quota(self, limit: int | None) -> None:
        """The pool's limit changes."""
        queues = (Queue("q", "q", 10), Queue("urgent", "urgent", 1))
        quotas = self.quotas = Quotas(queues=queues, worker_limit=limit)
        self.do(lambda: self.worker.controller.handle(ev.QuotasChanged(quotas)))

    def recover(self) -> None:
        """All faults stop and time passes: every run must come to its end."""
        self.fuse = None
        self.refusals.clear()
        self.hurry()
        self.set_quota(None)
        self.notice(None)
        self.uncordon()
        for run_id in sorted(self.suspended):
            self.resume(run_id)
        for process in self.processes.values():
            process.cut = False
        for _ in range(40 + 12 * len(self.submitted)):
            self.pass_time(5.0)
            self.check()
            if len(self.over) == len(self.submitted) and not self.worker.controller.runs:
                break
            for process in list(self.processes.values()):
                process.go()
                self.do(lambda: None)
        else:
            stages = {process.run_id: process.stage for process in self.processes.values()}
            lost = set(self.submitted) - set(self.over)
            raise AssertionError(f"never finalised: {sorted(lost)}; processes {stages}")
        assert self.worker.controller._launches.idle.is_set()
        assert not list((self.folder / "runs").glob("*")), "records are left"
        self.worker.kill()
