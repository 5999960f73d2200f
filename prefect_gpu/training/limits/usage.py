"""What this process uses, sampled at a low rate from ``/proc`` and, where it holds a real GPU, from NVML."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MAX_TASKS = 64  # looking for the children of more threads than this would cost more than it tells


class UsageSampler:
    """Samples this process. Whatever cannot be read is left out; nothing here raises.

    Args:
        devices: The run's devices as the driver named them: ``{"id", "kind", "memory_bytes", "virtual"}``. NVML is
            only loaded if one of them is real; nothing is ever reported of a virtual one.
    """

    def __init__(self, devices: list[dict[str, Any]] | None = None) -> None:
        self._gpus = _Gpus([str(device.get("id")) for device in devices or () if device.get("virtual") is False])
        self._last: tuple[float, float | None, int | None] | None = None
        self._first_unsent: tuple[float, float | None, int | None] | None = None
        self._rss_bytes: int | None = None
        self._rss_peak_bytes = 0
        self._gpu_samples: list[tuple[float | None, int]] = []
        self._gpu_peak_bytes = 0

    def sample(self) -> None:
        """Look at the process once; about every second."""
        self._last = (time.monotonic(), _cpu_seconds(), _net_bytes())
        if self._first_unsent is None:
            self._first_unsent = self._last
        rss = _rss_bytes()
        if rss is not None:
            self._rss_bytes = rss
            self._rss_peak_bytes = max(self._rss_peak_bytes, rss)
        gpu = self._gpus.sample()
        if gpu is not None:
            self._gpu_samples = [*self._gpu_samples[-59:], gpu]
            self._gpu_peak_bytes = max(self._gpu_peak_bytes, gpu[1])

    def take(self) -> dict[str, Any]:
        """The data of a USAGE event: rates over the time since the last call, and the newest sizes.

        Returns:
            Any of ``cpu_fraction`` (in cores: 1.5 is one and a half), ``rss_bytes``, ``rss_peak_bytes``,
            ``net_bytes_per_s`` (of the whole network namespace: with the process driver that is the machine's),
            ``device_util`` (0..1, mean of the devices) and ``device_memory_bytes`` (their sum, the most since the
            last call).
        """
        data: dict[str, Any] = {}
        if self._last is not None and self._first_unsent is not None:
            (at, cpu, net), (at0, cpu0, net0) = self._last, self._first_unsent
            seconds = at - at0
            if seconds > 0 and cpu is not None and cpu0 is not None:
                # A child that was never waited for takes its time along: not less than nothing was used, though.
                data["cpu_fraction"] = round(min(max(0.0, cpu - cpu0) / seconds, float(os.cpu_count() or 1)), 4)
            if seconds > 0 and net is not None and net0 is not None:
                data["net_bytes_per_s"] = max(0.0, net - net0) / seconds
        self._first_unsent = self._last
        if self._rss_bytes is not None:
            data["rss_bytes"], data["rss_peak_bytes"] = self._rss_bytes, self._rss_peak_bytes
        if self._gpu_samples:
            shares = [share for share, _ in self._gpu_samples if share is not None]
            if shares:
                data["device_util"] = sum(shares) / len(shares)
            data["device_memory_bytes"] = self._gpu_peak_bytes
            self._gpu_samples, self._gpu_peak_bytes = [], 0
        return data


def _cpu_seconds() -> float | None:
    """CPU time of this process, of its children that were waited for, and of its living descendants."""
    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    waiting, seen = [*_children(os.getpid())], set()
    while waiting:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        try:
            # The name in parentheses may hold spaces: the fields are counted after it.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / _TICKS_PER_SECOND
        except (OSError, ValueError):
            continue
        waiting.extend(_children(pid))
    return total


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        found: list[int] = []
        for task in tasks[:_MAX_TASKS]:
            found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
        return found
    except (OSError, ValueError):
        return []


def _rss_bytes() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _net_bytes() -> int | None:
    """Bytes received and sent by every interface but the loopback."""
    try:
        total = 0
        for line in Path("/proc/self/net/dev").read_text().splitlines()[2:]:
            name, _, numbers = line.partition(":")
            if name.strip() != "lo":
                fields = numbers.split()
                total += int(fields[0]) + int(fields[8])
        return total
    except (OSError, ValueError, IndexError):
        return None


class _Gpus:
    """The run's real GPUs through NVML, loaded at the first sample. NVML creates no CUDA context."""

    def __init__(self, ids: list[str]) -> None:
        self._ids = ids
        self._nvml: Any = None
        self._handles: list[Any] = []

    def sample(self) -> tuple[float | None, int] | None:
        """(Mean utilisation 0..1 or None, memory in bytes), or None where there is nothing to read."""
        if not self._ids:
            return None
        try:
            if self._nvml is None:
                self._open()
            shares, memory = [], 0
            for handle in self._handles:
                with contextlib.suppress(self._nvml.NVMLError):  # a MIG instance has no utilisation of its own
                    shares.append(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
                memory += self._memory_bytes(handle)
            return (sum(shares) / len(shares) if shares else None), memory
        except Exception:  # no driver, no module, a device that fell off the bus: then nothing is said of it
            self._ids = []
            return None

    def _open(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self._nvml = pynvml
        self._handles = [
            pynvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID(name)
            for name in self._ids
        ]

    def _memory_bytes(self, handle: Any) -> int:
        """What this process holds on the device, or, where the driver cannot tell, what is in use on it."""
        pids = {os.getpid(), *_children(os.getpid())}
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            processes = []
        own = [process.usedGpuMemory for process in processes if process.pid in pids]
        if own and all(size is not None for size in own):
            return sum(int(size) for size in own)
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
