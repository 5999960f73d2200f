"""What hardware counts of the energy that it takes: GPUs by themselves, processors in packages that all runs share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_ROOT = Path("/")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def gpu_energy_j(device_id: str) -> float | None:
    """Joules that a GPU has taken since its driver was loaded; None where nobody counts them, or not on this machine.

    NVML's ``nvmlDeviceGetTotalEnergyConsumption`` (Volta and newer). It has no counter for MIG instances.
    """
    import pynvml

    from prefect_gpu.runtime.telemetry import nvml

    if device_id.startswith("virtual-"):
        return None
    try:
        nvml.open_session()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device_id)
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000.0
    except pynvml.NVMLError:
        return None


class CpuEnergy:
    """The energy of this machine's processors, and who has used them: Intel's and AMD's RAPL by the kernel's powercap.

    A package counts for all that runs on it. So whoever asks divides: by processor time, of which :meth:`busy_s` is
    the whole.

    Args:
        root: Where ``proc`` and ``sys`` lie; tests put a made-up tree here.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        self._root = root
        self._last: dict[Path, float] = {}
        self._joules = 0.0

    def read_j(self) -> float | None:
        """Joules of all packages since the first call; None: no package is there, or this user may not read one.

        Kernels since 5.10 let only root read them, until somebody says otherwise.
        """
        found = False
        # intel-rapl:0 is a package; intel-rapl:0:0, its cores, is a part of it, and is not counted again.
        for zone in sorted((self._root / "sys/class/powercap").glob("*-rapl:*")):
            if zone.name.count(":") != 1 or not _read(zone / "name").startswith("package"):
                continue
            now = _number(zone / "energy_uj")
            if now is None:
                return None
            found = True
            before = self._last.get(zone, now)
            if now < before:  # the counter begins again at 0 when it is full
                before -= _number(zone / "max_energy_range_uj") or before
            self._last[zone] = now
            self._joules += (now - before) / 1e6
        return self._joules if found else None

    def busy_s(self) -> float | None:
        """Seconds for which the machine's processors have computed, summed over all of them, since it was started."""
        for line in _read(self._root / "proc/stat").splitlines():
            name, *fields = line.split()
            if name == "cpu" and len(fields) >= 7:
                user, nice, system, _idle, _waiting, irq, softirq = (int(field) for field in fields[:7])
                return (user + nice + system + irq + softirq) / _TICKS_PER_S
        return None


GpuCounter = Callable[[str], float | None]
"""Gives the joules that a device has taken so far; see :func:`gpu_energy_j`."""


def _number(path: Path) -> float | None:
    text = _read(path)
    return float(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
