"""One launch of a run: what the worker knows of it, and who is to hear of what happens to it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from prefect_gpu.estimation.goodput.batch_choice import NOISE
from prefect_gpu.estimation.runs import MARKS
from prefect_gpu.estimation.submission import MAX_GPUS, RESUMED_AT, SHARES, SPEEDS
from prefect_gpu.estimation.throughput.speeds import Measured, place_of
from prefect_gpu.runtime.drivers.base import ExitReport, RunHandle
from prefect_gpu.runtime.launch.diagnosis import ran_out_of_memory
from prefect_gpu.runtime.launch.gang import parts_of
from prefect_gpu.runtime.launch.records import RunRecord
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.model.instructions import Expire, Finish, Move, OpenGate, Preempt, SetCores, SetShare
from prefect_gpu.storage.row import HistoryRow, Outcome
from prefect_gpu.training import protocol

WAITING = "waiting"  # beside the phases, in the record's times: prepared, and waiting for the devices
CONSUMED = "consumed"  # in what the record knows, what the run has taken so far; in its times, until when
SAVED_BEFORE = "saved_before"  # in what it knows: the step that it had saved when an earlier launch was stopped
GATE_OPENED = "gate_opened"  # in its times: since when a run that was prepared behind another has its devices
OPENED = "opened"  # in what it knows: whether others were let in with it, as it did not use its devices
_SAVED = "saved_step"  # in its progress

Adjustment = OpenGate | SetCores | SetShare | Finish
"""What may be changed of a launch while it runs."""

# A loss curve is kept thin: when it is full, every second point goes.
_CURVE_POINTS = 512


@dataclass
class _Mean:
    total: float = 0.0
    squares: float = 0.0
    count: int = 0
    peak: float | None = None

    def add(self, value: object) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            self.total += value
            self.squares += value * value
            self.count += 1
            self.peak = value if self.peak is None else max(self.peak, value)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def std(self) -> float | None:
        if self.count < 2:
            return None
        return max(0.0, self.squares / self.count - (self.total / self.count) ** 2) ** 0.5


class Follower:
    """Is attached to a launch and hears of what happens to it. A method that is not overridden does nothing.

    One object may follow one launch or all of them.
    """

    def granted(self, launch: Launch, at: float) -> None:
        """It has got its place, and is recorded. All times are Unix seconds."""

    def adopted(self, launch: Launch, at: float) -> None:
        """An earlier worker launched it; its record says what has happened before. The scheduler is told next."""

    def started(self, launch: Launch) -> None:
        """Its process exists."""

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> Iterable[ev.Event]:
        """It has reported something, and is up to date.

        Yields:
            What the scheduler is to be told; each event is carried out before the next one is asked for.
        """
        return ()

    def adjusted(self, launch: Launch, change: Adjustment, at: float) -> None:
        """A change of it was begun, and its record is up to date."""

    def wasted(self, launch: Launch, stage: str, at: float) -> None:
        """It holds its devices without using them: it is told (``tell``), others may share them (``share``), or it is
        stopped (``stop``). Empty: it uses them again. What was seen is its :attr:`Launch.wasting`."""

    def ended(self, launch: Launch, at: float) -> None:
        """Its process is gone; how it ended is not known yet."""

    def over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
        """It is known how it ended; no outcome: it never began."""

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """Nothing is left of it. It may have a successor, if the run carries on."""


F = TypeVar("F", bound=Follower)


@dataclass(frozen=True)
class Suspend:
    """Save the run's progress and stop it, as its user has suspended it. It is not ours until it is resumed."""

    job: str
    reason: str


@dataclass
class Launch:
    """A launch, from the grant to the moment when Prefect and the history know how it ended."""

    record: RunRecord
    folder: Path
    handle: RunHandle | None = None
    phase: str = "launching"
    losses: list[tuple[float, float]] = field(default_factory=list)
    best_loss: float | None = None
    usage: dict[str, _Mean] = field(default_factory=dict)
    training_usage: dict[str, _Mean] = field(default_factory=dict)  # the samples of the training phase alone
    cancelling: bool = False
    suspending: bool = False  # its user's wish is known, and seen to
    deleted: bool = False  # whoever owns the run does not have it any more
    eviction: Preempt | Move | Suspend | Expire | None = None  # it is to carry on elsewhere, or its time is over
    gone: asyncio.Event = field(default_factory=asyncio.Event, repr=False, compare=False)  # its process is
    company: list[Launch] = field(
        default_factory=list, repr=False, compare=False
    )  # runs that shared its devices, ended or not
    device_idle_s: float | None = None
    exhausted: bool = False  # it has run out of the memory that it was granted of a device that it shared
    damaged: bool = False  # its record could not be read, and is left as it is: another version may read it
    stop_reason: str = ""  # why its pool cancels it, if that is nobody's wish
    wasting: str = ""  # what was seen of it, if it holds its devices without using them
    followers: list[Follower] = field(default_factory=list, repr=False, compare=False)
    saving_share: float | None = None  # of the processor, if it was given one to save with
    slowdowns: dict[str, float] = field(default_factory=dict)  # by flow of a neighbour
    _demoted: tuple[float, float | None] = (0.0, None)  # seconds so far with less than a full share, and since when
    _pace: dict[int, float] = field(default_factory=dict)  # by mark, seconds from the beginning of training
    _last: tuple[float, int] | None = None  # (those seconds, steps done) at the last report; None: not followed
    _steps: int | None = None  # which the marks are parts of
    _measured: Measured | None = None  # of an elastic run

    def __post_init__(self) -> None:
        if self.record.request.is_elastic:
            self._measured = Measured(self.record.speeds)
            self._measured.begins(*self.spread, self.record.batch_size)  # an adopted one may train already

    @property
    def run_id(self) -> str:
        """The flow run's id."""
        return self.record.run_id

    @property
    def place(self) -> str:
        """What it measures of its speed is kept under this; see :func:`.place_of`."""
        return place_of(*self.spread)

    @property
    def spread(self) -> tuple[int, int]:
        """Its devices, and the nodes that they are on."""
        parts = self.record.placement.parts
        return sum(len(part.devices) for part in parts), len({part.node for part in parts if part.devices})

    @property
    def saved_step(self) -> int | None:
        """The step of the newest checkpoint that is known of, from which the run would carry on; None: of none.

        It was saved by this launch, or is the one that this launch began with. Whatever was done since is done again.
        """
        step = self.record.progress.get(_SAVED)
        return step if _is_count(step) else None

    def held_s(self, now: float) -> float:
        """Seconds for which the run has held its devices, in this launch and in those before it."""
        return float(self.record.known.get("held_s", 0.0)) + self.held_now_s(now)

    def held_now_s(self, now: float) -> float:
        """The same in this launch alone. Those at a closed gate do not count: it is another that holds them then."""
        times = self.record.times
        since = times.get("granted")
        if self.record.gated:
            since = None if self.record.behind is not None else times.get(GATE_OPENED, times.get(protocol.TRAINING))
        return max(0.0, now - since) if since is not None else 0.0

    def attach(self, *followers: Follower) -> None:
        """They hear, in this order, of all that happens from here on."""
        self.followers += followers

    def attached(self, kind: type[F]) -> F | None:
        """The follower of that kind; None if there is none."""
        return next((one for one in self.followers if isinstance(one, kind)), None)

    def note(self, kind: str, at: float, data: dict[str, Any]) -> bool:
        """Bring the launch up to date with a report of its process; False if that is nothing new."""
        if kind == protocol.PHASE:
            phase = str(data.get("phase"))
            waits = phase == protocol.PREPARING and bool(data.get("waiting"))
            return self.enter(phase, at, data) or waits
        if kind == protocol.PROGRESS:
            self.progressed(data, at)
        elif kind == protocol.USAGE:
            self.used(data)
        elif kind == protocol.OUT_OF_MEMORY:
            self.exhausted = True
        elif kind == protocol.CHECKPOINT and not data.get("error") and _is_count(data.get("step")):
            self.record.progress[_SAVED] = data["step"]
        return True

    def enter(self, phase: str, at: float, data: dict[str, Any]) -> bool:
        """Note a phase; False if it is the one that the run was in already."""
        if phase == self.phase == protocol.PREPARING:
            if data.get("waiting"):
                self.record.times[WAITING] = at
                return False
            # A try after one that ran out of memory waits for its devices first, and prepares then.
            if self.record.times.pop(WAITING, None) is None:
                return False
            self.record.times["began_again"] = at
            return True
        if phase == self.phase or phase not in protocol.PHASES:
            return False
        self.phase = phase
        # A retry within the process enters its phases again: the last time counts, and of the phases that it has not
        # come to yet, the times of the try before do not.
        times = self.record.times
        if phase == protocol.PREPARING and phase in times:
            times["began_again"] = at
        for later in protocol.PHASES[protocol.PHASES.index(phase) + 1 :]:
            times.pop(later, None)
        if phase == protocol.PREPARING:
            times.pop(WAITING, None)
        times[phase] = at
        for key in ("steps", "batch_size", "features"):
            if data.get(key) is not None:
                self.record.known.setdefault("features", {})[key] = data[key]
        if phase == protocol.TRAINING:
            first = data.get("step")
            # A run that was restored counts on from the steps that it had done before.
            self.record.progress["first_step"] = first if _is_count(first) else 0
            if self.record.progress["first_step"]:
                self.record.progress[_SAVED] = first
            self._pace, self._steps = {}, None
            self._last = None if self.record.progress["first_step"] else (0.0, 0)
            if self._measured is not None:
                self._measured.begins(*self.spread, self.record.batch_size)
        return True

    def progressed(self, data: dict[str, Any], at: float | None = None) -> None:
        """Note a progress report of a time in Unix seconds; None: its time says nothing of the run's pace."""
        self.record.progress.update(
            {key: value for key, value in data.items() if key != "losses" and value is not None}
        )
        points = data.get("losses") or ([[data.get("step", 0), data["loss"]]] if data.get("loss") is not None else [])
        for step, loss in points:
            while self.losses and self.losses[-1][0] >= step:  # a correction, or a retry that began again further back
                self.losses.pop()
            self.losses.append((step, loss))
            self.best_loss = loss if self.best_loss is None else min(self.best_loss, loss)
        while len(self.losses) > _CURVE_POINTS:
            self.losses = [*self.losses[:-1:2], self.losses[-1]]
        if at is not None and self._measured is not None and _is_count(data.get("step")):
            self._measured.reports(data["step"], at, data.get("batches", 0))
            if data.get("noise_scale") is not None:
                self.record.speeds[NOISE] = [data["noise_scale"], data["step"]]
        if at is not None and self._last is not None and _is_count(data.get("step")):
            self._last = self._passed(data["step"], at - self.record.times[protocol.TRAINING], *self._last)

    def _passed(self, step: int, now: float, before: float, done: int) -> tuple[float, int] | None:
        """Note the marks between two reports, times in between taken as even. None: follow the run no further."""
        steps = self.record.progress.get("steps") or self.record.known.get("features", {}).get("steps")
        if not _is_count(steps) or self._steps not in (None, steps) or step < done or now < before:
            self._pace = {}
            return None
        self._steps = steps
        for mark in MARKS:
            needed = -(-steps * mark // 100)
            if done < needed <= step:
                self._pace[mark] = before + (now - before) * (needed - done) / (step - done)
        return now, step

    @property
    def waiting(self) -> bool:
        """Whether it is prepared and waits for its devices."""
        return self.phase == protocol.PREPARING and WAITING in self.record.times

    def weighed(self, weight: float, at: float) -> None:
        """Note the run's share of its devices from this time on (Unix seconds)."""
        self._demoted = (self.demoted_s(at) or 0.0, at if weight < 1.0 else None)
        self.record.weight = weight

    def demoted_s(self, until: float) -> float | None:
        """Seconds for which the run has had less than a full share; None if it never had."""
        spent_s, since = self._demoted
        total_s = spent_s + (max(0.0, until - since) if since is not None else 0.0)
        return total_s or None

    def used(self, data: dict[str, Any]) -> None:
        """Note a usage sample."""
        for key, value in data.items():
            self.usage.setdefault(key, _Mean()).add(value)
            if self.phase == protocol.TRAINING:
                self.training_usage.setdefault(key, _Mean()).add(value)

    def history_row(
        self, *, outcome: Outcome, message: str, report: ExitReport, devices: Sequence[Device], ended_at: float
    ) -> HistoryRow:
        """What the history keeps of this launch.

        Args:
            devices: Those that it had, as far as they are known; what its record says of them counts for more.
            ended_at: Unix seconds.
        """
        record, times, known = self.record, self.record.times, self.record.known
        features, taken = known.get("features", {}), known.get(CONSUMED, {})
        if record.progress.get("first_step"):
            features = features | {RESUMED_AT: record.progress["first_step"]}
        if self._measured is not None:
            features = features | {MAX_GPUS: record.request.most_gpus, SPEEDS: record.speeds}
        if record.request.shareable:
            features = features | {SHARES: True}
        followed = len(self._pace) == len(MARKS) and record.progress.get("step") == self._steps
        granted, launched = times.get("granted"), times.get("launched")
        preparing, training = times.get(protocol.PREPARING), times.get(protocol.TRAINING)
        saving, finished = times.get(protocol.SAVING), times.get(protocol.FINISHED)
        started = launched or granted
        wall = ended_at - started if started else None
        cpu_mean = self._mean("cpu_fraction")
        if cpu_mean is None and report.cpu_seconds is not None and wall:
            cpu_mean = report.cpu_seconds / wall
        kind = record.kind or (devices[0].kind if devices else None)
        virtual = any(device.virtual for device in devices) if record.virtual is None else record.virtual
        on_gpus = kind is not None and not virtual
        return HistoryRow(
            run_id=record.run_id,
            flow_name=str(known.get("flow_name") or ""),
            outcome=outcome,
            ended_at=ended_at,
            attempt=record.attempt,
            launch=self.folder.name.rpartition("-")[2] or None,
            run_name=record.name,
            deployment=known.get("deployment"),
            pool=record.pool,
            worker=known.get("worker"),
            category=record.request.category,
            parameters=known.get("parameters") or {},
            features=features,
            requested_gpus=record.request.gpus,
            # Where the pool decided that it shares, that is what it was granted, and nobody asked for it.
            requested_gpu_memory_bytes=None if self._sized_by_pool else record.request.gpu_memory_bytes,
            requested_cpus=record.request.cpus,
            node=record.placement.node,
            devices=record.placement.all_devices,
            device_kind=kind,
            virtual=virtual,
            parts=tuple(parts_of(record.placement)),
            deadline_at=record.request.deadline_at,
            promised=known.get("promised"),
            submitted_at=times.get("submitted"),
            granted_at=granted,
            started_at=started,
            # A run that is not due yet does not wait for a device.
            waited_s=_span(max(times.get("submitted", 0.0), times.get("due", 0.0)) or None, granted),
            # Launching ends where training begins (Liquid eq. 1: T_l, then N steps, then T_sa).
            prepared_s=_span(
                times.get("began_again", granted),
                times.get(WAITING) or training or (None if preparing is None else finished),
            ),
            trained_s=_span(training, saving or finished or (ended_at if training else None)),
            saved_s=_span(saving, finished or (ended_at if saving else None)),
            steps_done=record.progress.get("step"),
            pace={str(mark): seconds for mark, seconds in self._pace.items()} if followed else {},
            final_loss=self.losses[-1][1] if self.losses else record.progress.get("loss"),
            best_loss=self.best_loss,
            # Liquid §4 asks for the use while training: launching and saving leave the devices idle.
            device_util_mean=self._of_training("device_util").mean,
            device_util_std=self._of_training("device_util").std,
            device_util_peak=self._peak("device_util"),
            device_memory_peak_bytes=_whole(self._peak("device_memory_bytes")),
            cpu_mean=cpu_mean,
            rss_peak_bytes=report.max_rss_bytes or _whole(self._peak("rss_bytes")),
            net_mean_bytes_per_s=self._mean("net_bytes_per_s"),
            neighbours=tuple(sorted({str(other.record.known.get("flow_name")) for other in self.company})),
            estimate=known.get("estimate") or {},
            exit_code=report.returncode,
            message=message,
            warm_start=bool(record.warm),  # a run that never had a process was not started warm
            prepared_behind=record.gated,
            gate_wait_s=_span(times.get(WAITING), training or ended_at),
            device_idle_s=self.device_idle_s,
            slowdowns=dict(self.slowdowns),
            demoted_s=self.demoted_s(ended_at),
            cores=len(record.placement.cpus) or None,
            out_of_memory=outcome in ("failed", "crashed") and ran_out_of_memory(report, message, of_devices=on_gpus),
            owner=record.request.owner or None,
            priority=record.request.priority,
            device_s=taken.get("device_s"),
            energy_j=None if taken.get("unmetered") else taken.get("energy_j"),
            energy_from=None if taken.get("unmetered") else taken.get("energy_from"),
            cost=None if taken.get("unpriced") else taken.get("cost"),
        )

    @property
    def _sized_by_pool(self) -> bool:
        request = self.record.request
        return request.automatic and (self.exhausted or not request.exclusive)

    def _mean(self, key: str) -> float | None:
        return self.usage[key].mean if key in self.usage else None

    def _of_training(self, key: str) -> _Mean:
        return self.training_usage.get(key) or self.usage.get(key) or _Mean()

    def _peak(self, key: str) -> float | None:
        return self.usage[key].peak if key in self.usage else None


def _span(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(0.0, end - start)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def died_of_its_limit(run: Launch, report: ExitReport, message: str = "") -> bool:
    """Whether a run that shared its devices may have ended because of the memory that it was granted.

    Here a suspicion is enough: if it is tried again, it gets whole devices, which does no harm. So a process that was
    killed without a word counts.
    """
    if run.exhausted:
        return True
    if not run.record.placement.shared or run.cancelling:
        return False
    killed = report.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
    return killed or (report.returncode != 0 and ran_out_of_memory(report, message))
