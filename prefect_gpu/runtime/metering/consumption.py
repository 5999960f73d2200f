"""What runs take of what they were granted: device time, its price, and energy. A run that shares takes its part.

A device's time and energy are divided among the runs that hold it by the *shares that they were granted*: equally where
all have a full share, and by weight where some give way. What each has really used is not asked: NVML counts a device's
energy, and not a process's. A run that is prepared behind another one takes nothing until its gate is open.

Where there is no GPU, the energy of the processors is divided by processor time: a run takes the part that its own has
in that of the whole machine. What the machine takes while it idles is thereby on those who compute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_gpu.runtime.clock import Clock
from prefect_gpu.runtime.launch.launch import CONSUMED, Adjustment, Follower, Launch, Suspend
from prefect_gpu.runtime.metering.prices import Prices
from prefect_gpu.runtime.telemetry.energy import CpuEnergy, GpuCounter, gpu_energy_j
from prefect_gpu.scheduling.model.cluster import Device

EVERY_S = 2.0
_MOST_KEPT = 10_000  # runs that left their devices and may be back
SOURCES = _GPU, _CPU = ("gpu", "cpu")


class Consumption(Follower):
    """Follows all launches, and keeps what each has taken so far in its record, so that a later worker goes on.

    Args:
        devices: Those that are known of some ids.
        prices: Of the devices.
        clock: The worker's time.
        counter: Reads the energy of a GPU.
        cpu: Reads that of the processors; None where runs are not processes of this machine.

    Attributes:
        energy_j: Joules that were taken since the worker's start, by what counted them, ``gpu`` or ``cpu``.
        cost: Of the devices since then.
    """

    def __init__(
        self,
        devices: Callable[[Sequence[str]], Sequence[Device]],
        prices: Prices,
        clock: Clock,
        *,
        counter: GpuCounter = gpu_energy_j,
        cpu: CpuEnergy | None = None,
    ) -> None:
        self._devices, self._prices, self._clock = devices, prices, clock
        self._counter, self._cpu = counter, cpu
        self._held: dict[str, Launch] = {}
        self._parts: dict[str, dict[str, float]] = {}  # by device, by run, since the last look
        self._kinds: dict[str, Device] = {}
        self._joules: dict[str, float | None] = {}  # by device, at the last look
        self._busy: dict[str, float] = {}  # by run, seconds of processor time at the last look
        self._packages: tuple[float, float] | None = None  # joules and busy seconds then
        self._at = clock()
        self._left: dict[str, dict[str, Any]] = {}  # what runs took that are to carry on, unless their owner keeps it
        self.energy_j = dict.fromkeys(SOURCES, 0.0)
        self.cost = 0.0

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def granted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`. What an earlier launch of the run has taken counts, whichever worker it was of."""
        launch.record.known.setdefault(CONSUMED, self._left.pop(launch.run_id, {}))
        self._hold(launch, at)

    def adopted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`. It held its devices while no worker looked; of their energy then nothing is known."""
        taken = launch.record.known.setdefault(CONSUMED, {})
        since = launch.record.times.get(CONSUMED)
        # Without it, the record is taken as it was at the launch, or of a version that did not count.
        passed_s = max(0.0, at - since) if since is not None else launch.held_now_s(at)
        for device in self._of(launch):
            self._take_time(taken, device, passed_s)
        self._hold(launch, at)

    def adjusted(self, launch: Launch, change: Adjustment, at: float) -> None:
        """See :class:`.Follower`: it may have another share from here on."""
        self.look()

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        if self._held.get(launch.run_id) is launch:
            self.look()
            del self._held[launch.run_id]
            self._divide()

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. A run that is suspended is forgotten here, and may be resumed.

        One that was to stop for another reason and has ended has its row: tried again, it begins anew.
        """
        if self._held.get(launch.run_id) is launch:
            self.ended(launch, at)
        if carries_on or isinstance(launch.eviction, Suspend):
            self._left[launch.run_id] = launch.record.known.get(CONSUMED, {})
            while len(self._left) > _MOST_KEPT:
                del self._left[next(iter(self._left))]

    def look(self) -> None:
        """Give every run its part of what was taken since the last look, and divide anew."""
        now = self._clock()
        passed_s, self._at = max(0.0, now - self._at), now
        joules = {name: self._counter(name) for name, device in self._kinds.items() if not device.virtual}
        for name, parts in self._parts.items():
            before, after = self._joules.get(name), joules.get(name)
            for run_id, part in parts.items():
                if (launch := self._held.get(run_id)) is None:
                    continue
                taken = launch.record.known.setdefault(CONSUMED, {})
                self._take_time(taken, self._kinds[name], part * passed_s)
                if not self._kinds[name].virtual:
                    known = before is not None and after is not None and after >= before
                    self._take_energy(taken, _GPU, part * (after - before) if known else None)  # type: ignore[operator]
        self._look_at_processors()
        for launch in self._held.values():
            launch.record.times[CONSUMED] = now
        self._joules = joules
        self._divide()

    def _hold(self, launch: Launch, at: float) -> None:
        self.look()
        self._held[launch.run_id] = launch
        launch.record.times[CONSUMED] = at
        self._divide()

    def _of(self, launch: Launch) -> Sequence[Device]:
        return self._devices(launch.record.placement.all_devices)

    def _divide(self) -> None:
        """Note who holds which device, and to which part."""
        self._kinds = {device.id: device for launch in self._held.values() for device in self._of(launch)}
        weights: dict[str, dict[str, float]] = {name: {} for name in self._kinds}
        for run_id, launch in self._held.items():
            if launch.record.behind is None:
                for name in launch.record.placement.all_devices:
                    if name in weights:
                        weights[name][run_id] = launch.record.weight
        self._parts = {name: divided(found) for name, found in weights.items()}
        for name, device in self._kinds.items():
            if name not in self._joules and not device.virtual:
                self._joules[name] = self._counter(name)
        if self._cpu is not None and self._packages is None and self._held:
            self._look_at_processors()

    def _take_time(self, taken: dict[str, Any], device: Device, seconds: float) -> None:
        taken["device_s"] = taken.get("device_s", 0.0) + seconds
        price = self._prices.per_hour(device.kind)
        if price is None:
            taken["unpriced"] = True
        else:
            cost = price * seconds / 3600.0
            taken["cost"] = taken.get("cost", 0.0) + cost
            self.cost += cost

    def _take_energy(self, taken: dict[str, Any], source: str, joules: float | None) -> None:
        if joules is None:
            taken["unmetered"] = True
            return
        taken["energy_from"] = source
        taken["energy_j"] = taken.get("energy_j", 0.0) + joules
        self.energy_j[source] += joules

    def _look_at_processors(self) -> None:
        """The same of processors, for runs that have no GPU."""
        if self._cpu is None or not self._held:
            return
        joules, busy = self._cpu.read_j(), self._cpu.busy_s()
        if joules is None or busy is None:
            return
        last, self._packages = self._packages, (joules, busy)
        for run_id in self._busy.keys() - self._held.keys():
            del self._busy[run_id]
        for run_id, launch in self._held.items():
            if any(not device.virtual for device in self._of(launch)):
                continue
            own = 0.0 if launch.handle is None else launch.handle.busy_seconds()
            if own is None:
                continue
            used, self._busy[run_id] = own - self._busy.get(run_id, own), own
            if last is not None and busy > last[1]:
                part = min(1.0, max(0.0, used) / (busy - last[1]))
                self._take_energy(launch.record.known.setdefault(CONSUMED, {}), _CPU, part * (joules - last[0]))


def divided(weights: Mapping[str, float]) -> dict[str, float]:
    """Each one's part of the whole, by weight; equal parts if nobody has any.

    Example:
        >>> divided({"a": 1.0, "b": 0.25})
        {'a': 0.8, 'b': 0.2}
    """
    whole = sum(weights.values())
    return {name: weight / whole if whole else 1.0 / len(weights) for name, weight in weights.items()}
