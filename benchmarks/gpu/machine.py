"""What this machine has to be measured: its first GPU or, where there is none, a virtual device."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prefect_gpu.scheduling.model.cluster import Device, Node

VIRTUAL_MEMORY_BYTES = 4 << 30
_SAMPLE_S = 0.2


@dataclass(frozen=True)
class Machine:
    """What is measured.

    Attributes:
        device: A GPU, or a virtual device: then trainings run on the CPU.
        cpus: Core numbers that this process may use.
    """

    device: Device
    cpus: tuple[int, ...]

    @property
    def virtual(self) -> bool:
        """Whether there is no GPU."""
        return self.device.virtual

    @property
    def node(self) -> Node:
        """As the scheduler sees it."""
        return Node("here", (self.device,), self.cpus)

    @property
    def words(self) -> str:
        """For people."""
        cores = f"{len(self.cpus)} cores"
        if self.virtual:
            return f"a VIRTUAL device (no GPU: trainings run on the CPU), {cores}"
        return f"{self.device.kind}, {self.device.memory_bytes / 2**30:.0f} GiB, {cores}"


def this_machine(*, virtual: bool = False) -> Machine:
    """The first GPU that the NVIDIA driver knows and PyTorch can use; otherwise a virtual device.

    Args:
        virtual: Use a virtual device even if there is a GPU.
    """
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    device = None if virtual or os.environ.get("CUDA_VISIBLE_DEVICES") == "" else _first_gpu()
    return Machine(device or Device("virtual-0", "virtual", VIRTUAL_MEMORY_BYTES, virtual=True), cpus)


def _first_gpu() -> Device | None:
    """From NVIDIA's own tool, since its Python module may be missing."""
    import torch

    if torch.version.cuda is None:  # PyTorch for the CPU
        return None
    found = _ask("uuid,name,memory.total")
    if found is None:
        return None
    uuid, name, mebibytes = found
    return Device(uuid, name, int(float(mebibytes) * 2**20))


def _ask(what: str, uuid: str | None = None) -> list[str] | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    of = ["-i", uuid] if uuid else []
    command = [program, *of, f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    lines = said.strip().splitlines()
    return [part.strip() for part in lines[0].split(",")] if lines else None


@dataclass
class Usage:
    """Samples of a device: its use from 0 to 1, and bytes in use. Empty for a virtual device."""

    use: list[float] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, float | int | None]:
        """Mean use, peak memory and the number of samples."""
        return {
            "device_util_mean": round(sum(self.use) / len(self.use), 3) if self.use else None,
            "device_memory_peak_bytes": max(self.memory_bytes, default=None),
            "samples": len(self.use),
        }


@asynccontextmanager
async def sampled(machine: Machine) -> AsyncIterator[Usage]:
    """Samples the device, five times a second, as long as the block lasts: through NVML, else ``nvidia-smi``."""
    usage = Usage()
    task = None if machine.virtual else asyncio.get_running_loop().create_task(_sample(machine.device.id, usage))
    try:
        yield usage
    finally:
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _sample(device: str, usage: Usage) -> None:
    while True:
        found = await asyncio.to_thread(_look, device)
        if found is not None:
            usage.use.append(found[0])
            usage.memory_bytes.append(found[1])
        await asyncio.sleep(_SAMPLE_S)


def _look(device: str) -> tuple[float, int] | None:
    try:
        from prefect_gpu.runtime.telemetry import DeviceUnavailable, sample_device
    except ImportError:  # no NVML module
        said = _ask("utilization.gpu,memory.used", device)
        with contextlib.suppress(ValueError, TypeError):
            return float(said[0]) / 100, int(float(said[1]) * 2**20)  # type: ignore[index]
        return None
    try:
        sample = sample_device(device)
    except DeviceUnavailable:
        return None
    if sample.util is None or sample.memory_used_bytes is None:
        return None
    return sample.util, sample.memory_used_bytes
