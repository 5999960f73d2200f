"""Looks for runs that hold devices without using them, and does what the operator has set.

How much a run uses its devices is what it reports. Of a run that reports nothing, a real device is asked, if the run
has it alone. Virtual devices have no use that could be measured: there it is the processor time of the run over its
cores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.launch.launch import OPENED, Follower, Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.state.state import State
from prefect_gpu.scheduling.waste.rule import STAGES, Stage, WasteRule, WasteWatch
from prefect_gpu.training import protocol

EVERY_S = 5.0
IDLE_SINCE = "idle_since"  # in a record's times: since when the run does not use its devices
STAGE = "waste"  # in what a record knows: how far things have come
_WORTH_KEEPING = 0.1  # the part of the operator's time from which on that is written down
_HEARD_S = 15.0  # a report that is older says nothing of now
_ROOM = 1.1  # others are left what the run has used at most, and a little of what it may use again


class WasteFinder(Follower):
    """Watches all launches that hold devices.

    Args:
        rule: What counts as waste, and how far things go.
        runs: All launches, by run.
        devices: Those that are known of some ids.
        tell: Tells the scheduler.
        state: The scheduler's books; only looked at.
        save: Writes a run's record.
        clock: The worker's time.
        logger: Told of each run.

    Attributes:
        on_stop: Called with a run that is to be stopped, and why.
    """

    def __init__(
        self,
        rule: WasteRule,
        runs: Mapping[str, Launch],
        devices: Callable[[Sequence[str]], Sequence[Device]],
        tell: Callable[[ev.Event], None],
        state: State,
        save: Callable[[Launch], None],
        clock: Clock,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._rule, self._runs, self._devices = rule, runs, devices
        self._tell, self._state, self._save, self._clock, self._logger = tell, state, save, clock, logger
        self._watches: dict[str, WasteWatch] = {}
        self._stages: dict[str, Stage] = {}
        self._heard: dict[str, float] = {}  # when a run last said what it uses
        self._busy: dict[str, tuple[float, float]] = {}
        self.on_stop: Callable[[Launch, str], None] = lambda launch, reason: None

    @property
    def looks(self) -> bool:
        """Whether anybody wants to know."""
        return self._rule.up_to is not None

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(min(EVERY_S, self._rule.for_s / 4))
            self.look()

    def granted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        if launch.record.placement.all_devices:
            self._watches[launch.run_id] = WasteWatch(self._rule, at)

    def adopted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`. The worker before may have seen that it is idle: its time goes on."""
        if not launch.record.placement.all_devices:
            return
        known, since = launch.record.known, launch.record.times.get(IDLE_SINCE)
        trains = launch.phase in (protocol.TRAINING, protocol.SAVING) or bool(launch.record.progress.get("step"))
        watch = self._watches[launch.run_id] = WasteWatch(self._rule, at if since is None else since, trains)
        stage = next((one for one in STAGES if one == known.get(STAGE)), None)
        if stage is not None and since is not None:  # that has been said, and done
            self._stages[launch.run_id] = stage
            launch.wasting = watch.words(at, self._what(launch))

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        watch = self._watches.get(launch.run_id)
        if watch is None:
            return ()
        if kind == protocol.PHASE and launch.phase == protocol.TRAINING:
            watch.trains(at)
        elif kind == protocol.PROGRESS and data.get("step"):
            watch.steps(at)
        elif kind == protocol.USAGE and (use := self._reported_use(launch, data)) is not None:
            self._heard[launch.run_id] = self._clock()
            watch.uses(use, at)
        return ()

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        for known in (self._watches, self._stages, self._heard, self._busy):
            known.pop(launch.run_id, None)  # type: ignore[attr-defined]

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. It may never have had a process."""
        if self._runs.get(launch.run_id) is None:
            self.ended(launch, at)

    def look(self) -> None:
        """Measure whoever says nothing, and do what is to be done now."""
        now = self._clock()
        for run_id, watch in list(self._watches.items()):
            launch = self._runs.get(run_id)
            if launch is None:
                continue
            if _cannot_help_it(launch):
                watch.excused(now)
            elif (
                now - self._heard.get(run_id, -1e9) > _HEARD_S and (use := self._measured_use(launch, now)) is not None
            ):
                watch.uses(use, now)
            self._keep(launch, watch, now)
            stage = watch.stage(now)
            if stage != self._stages.get(run_id):
                self._changed(launch, watch, stage, now)

    def _keep(self, launch: Launch, watch: WasteWatch, now: float) -> None:
        """Write down since when it is idle, once for each time that it is: a later worker goes on from there."""
        is_idle = watch.idle_s(now) >= self._rule.for_s * _WORTH_KEEPING
        since = watch.idle_since if is_idle else None
        if since == launch.record.times.get(IDLE_SINCE):
            return
        if since is None:
            del launch.record.times[IDLE_SINCE]
        else:
            launch.record.times[IDLE_SINCE] = since
        self._save(launch)

    def _changed(self, launch: Launch, watch: WasteWatch, stage: Stage | None, now: float) -> None:
        launch.record.known[STAGE] = stage
        if stage is None:
            del self._stages[launch.run_id]
            launch.wasting = ""
            self._tell(ev.WasteEnded(launch.run_id))
            self._note(launch)
        else:
            self._stages[launch.run_id] = stage
            launch.wasting = watch.words(now, self._what(launch))
            self._logger.warning("Run %s wastes its devices: %s.", launch.record.name, launch.wasting)
            share = self._needs_bytes(launch) if stage == "share" else None
            self._tell(ev.WasteNoticed(launch.run_id, launch.wasting, share))
            self._note(launch)
            if stage == "stop":
                self.on_stop(launch, f"Stopped by its pool: {launch.wasting}.")
        for follower in launch.followers:
            follower.wasted(launch, stage or "", now)

    def _note(self, launch: Launch) -> None:
        """Take over into its record what the scheduler has decided about its devices, and what was said."""
        job = self._state.running.get(launch.run_id)
        if job is not None and job.placement is not None:
            launch.record.known[OPENED] = job.opened
            if job.request != launch.record.request:
                launch.record.request, launch.record.placement = job.request, job.placement
        self._save(launch)

    def _what(self, launch: Launch) -> str:
        return "its cores" if self._is_virtual(launch) else "its devices"

    def _is_virtual(self, launch: Launch) -> bool:
        return all(device.virtual for device in self._devices(launch.record.placement.all_devices))

    def _reported_use(self, launch: Launch, data: dict[str, Any]) -> float | None:
        if not self._is_virtual(launch):
            return data.get("device_util")
        used = data.get("cpu_fraction")
        return None if used is None else min(1.0, used / max(1, len(launch.record.placement.cpus)))

    def _measured_use(self, launch: Launch, now: float) -> float | None:
        """What can be seen from outside."""
        if launch.handle is None:
            return None
        if not self._is_virtual(launch):
            return None if launch.record.placement.shared else _use_of(launch.record.placement.all_devices)
        busy = launch.handle.busy_seconds()
        if busy is None:
            return None
        last, self._busy[launch.run_id] = self._busy.get(launch.run_id), (now, busy)
        if last is None or now <= last[0]:
            return None
        return min(1.0, max(0.0, busy - last[1]) / (now - last[0]) / max(1, len(launch.record.placement.cpus)))

    def _needs_bytes(self, launch: Launch) -> int | None:
        """What it must be left of each device's memory; None: nobody knows, so nobody can be let in."""
        key = "rss_peak_bytes" if self._is_virtual(launch) else "device_memory_bytes"
        peak = launch.usage[key].peak if key in launch.usage else None
        return int(peak * _ROOM) if peak else None


def _cannot_help_it(launch: Launch) -> bool:
    """Whether it waits for its devices, gives way to others, or is about to leave: then it is not to use them."""
    leaves = launch.phase in (protocol.SAVING, protocol.FINISHED) or launch.eviction is not None or launch.cancelling
    return launch.record.behind is not None or launch.waiting or launch.record.weight < 1.0 or leaves


def _use_of(devices: Sequence[str]) -> float | None:
    """The mean use of real devices of this machine; None: nobody tells."""
    from prefect_gpu.runtime.telemetry.nvml import DeviceUnavailable, sample_device

    with suppress(DeviceUnavailable):
        parts = [sample_device(device).util for device in devices]
        known = [part for part in parts if part is not None]
        return sum(known) / len(known) if len(known) == len(parts) and known else None
    return None
