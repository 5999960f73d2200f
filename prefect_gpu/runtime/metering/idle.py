"""How long devices stand idle between two trainings: what pre-scheduling is for, measured (Liquid §6.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.training import protocol


@dataclass
class _Device:
    trains: set[str] = field(default_factory=set)
    free_since: float | None = None  # None: nobody has trained on it yet
    idle_s: float = 0.0
    gaps: int = 0


class IdleTime(Follower):
    """Follows who trains on which device. Times are Unix seconds.

    Example:
        >>> idle = IdleTime()
        >>> idle.begins("a", ["virtual-0"], 10.0), idle.ends("a", 20.0), idle.begins("b", ["virtual-0"], 20.5)
        (None, None, 0.5)
        >>> idle.total("virtual-0")
        (0.5, 1)
    """

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def adopted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        if launch.phase == protocol.TRAINING:
            self.begins(launch.run_id, launch.record.placement.all_devices, launch.record.times[protocol.TRAINING])

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        if kind == protocol.PHASE and launch.phase == protocol.TRAINING:
            launch.device_idle_s = self.begins(launch.run_id, launch.record.placement.all_devices, at)
        elif kind == protocol.PHASE and launch.phase != protocol.PREPARING:  # a new try keeps its devices
            self.ends(launch.run_id, at)
        return ()

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        self.ends(launch.run_id, at)

    def begins(self, run: str, devices: Iterable[str], at: float) -> float | None:
        """A run begins to train.

        Returns:
            Seconds for which the devices stood idle before it, the mean of several; None where nobody had trained.
        """
        gaps = []
        for name in devices:
            device = self._devices.setdefault(name, _Device())
            if device.free_since is not None:
                gap = 0.0 if device.trains else max(0.0, at - device.free_since)
                gaps.append(gap)
                device.idle_s += gap
                device.gaps += 1
            device.trains.add(run)
        return sum(gaps) / len(gaps) if gaps else None

    def ends(self, run: str, at: float) -> None:
        """A run trains no more. Whoever did not train changes nothing."""
        for device in self._devices.values():
            if run in device.trains:
                device.trains.discard(run)
                device.free_since = max(at, device.free_since or at)

    def total(self, device: str) -> tuple[float, int]:
        """(Seconds idle between two trainings, how many times) of a device."""
        known = self._devices.get(device)
        return (known.idle_s, known.gaps) if known else (0.0, 0)
