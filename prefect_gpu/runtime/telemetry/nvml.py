"""NVIDIA GPUs through NVML: listed with everything that is wrong with them, and sampled one at a time.

The NVML session is opened once per process and stays open: opening takes a good tenth of a second per GPU, and
samples are taken all the time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from prefect_gpu.phases import within
from prefect_gpu.runtime.telemetry import nvlink, nvml_words
from prefect_gpu.runtime.telemetry.findings import Finding

_session_lock = threading.Lock()
_session_pid: int | None = None  # a forked child must open its own


@dataclass(frozen=True)
class DeviceInfo:
    """One device that a run can be given.

    Attributes:
        id: GPU UUID (``GPU-...``), MIG UUID (``MIG-...``), or ``virtual-0``.
        kind: Product name, such as ``NVIDIA H100 80GB HBM3``; ``virtual`` for virtual devices.
        memory_bytes: What a run can use of it: all, less what the driver keeps for itself.
        virtual: Declared, not found: training bound to it runs on the CPU.
        index: NVML's number (PCI bus order) of the GPU, or of the GPU that a MIG instance is a part of.
        cores: Core numbers near its PCI bus; empty if the driver does not tell.
        parent: UUID of the GPU that a MIG instance is a part of.
        capability: Compute capability, as (8, 0); None if the driver does not tell.
        links: UUIDs of the GPUs that it reaches over NVLink, directly or through a switch.
    """

    id: str
    kind: str
    memory_bytes: int
    virtual: bool
    index: int | None = None
    cores: tuple[int, ...] = ()
    parent: str | None = None
    capability: tuple[int, int] | None = None
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceSample:
    """What a device did lately.

    Attributes:
        util: Share of the last sampling period in which a kernel ran, 0 to 1; None where the driver does not
            tell (MIG instances).
        memory_used_bytes: Memory in use on it by all processes; None where the driver does not tell.
    """

    util: float | None
    memory_used_bytes: int | None


class DeviceUnavailable(RuntimeError):
    """A device cannot be reached (any more). The message says why, in plain words."""


@dataclass(frozen=True)
class Listing:
    """What the driver told.

    Attributes:
        no_driver: Text and remedy where there is no driver at all, so that virtual devices may be used instead.
        devices: The usable devices, by index.
        findings: What is wrong, and what to do.
    """

    no_driver: tuple[str, str] | None = None
    devices: tuple[DeviceInfo, ...] = ()
    findings: tuple[Finding, ...] = ()


def list_devices(*, host_memory_bytes: int, about: Collection[int] | None = None) -> Listing:
    """Ask the driver for all GPUs and MIG instances. Never raises for what a driver may answer.

    Args:
        host_memory_bytes: Taken as the memory of GPUs that have none of their own (unified memory).
        about: The numbers of the GPUs whose troubles are of interest; None for all.
    """
    try:
        open_session()
    except pynvml.NVMLError as error:
        if error.value in nvml_words.NO_DRIVER:
            return Listing(no_driver=nvml_words.NO_DRIVER[error.value])
        text, remedy = nvml_words.driver_failure(error)
        return Listing(findings=(Finding("error", "driver", text, remedy),))

    findings: list[Finding] = []
    devices: list[DeviceInfo] = []
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        text, remedy = nvml_words.driver_failure(error)
        return Listing(findings=(Finding("error", "driver", text, remedy),))
    for index in range(count):
        try:
            found, complaints = _list_gpu(index, host_memory_bytes)
        except pynvml.NVMLError as error:
            text, remedy = nvml_words.gpu_failure(error)
            found, complaints = [], [Finding("warning", f"GPU {index}", f"Left out: {text}", remedy)]
        devices += found
        # Nobody wants to hear that a GPU fails which they have hidden for that very reason.
        if about is None or index in about:
            findings += complaints
    links = nvlink.links_between([device.id for device in devices if device.parent is None])  # MIG instances have none
    devices = [replace(device, links=links.get(device.id, ())) for device in devices]
    return Listing(devices=tuple(devices), findings=tuple(findings))


def sample_device(device_id: str) -> DeviceSample:
    """Utilisation and memory of one GPU or MIG instance, now.

    Args:
        device_id: UUID, as in :attr:`DeviceInfo.id`.

    Raises:
        DeviceUnavailable: There is no such GPU, it was lost, or the driver fails. A virtual device has nothing
            to sample either.
    """
    if device_id.startswith("virtual-"):
        raise DeviceUnavailable(f"{device_id} is a virtual device: there is nothing to measure on it.")
    try:
        open_session()
        handle = pynvml.nvmlDeviceGetHandleByUUID(device_id)
        # Asked one by one: a driver that does not tell the one may still tell the other.
        rates = _unless_unsupported(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle))
        memory = _unless_unsupported(lambda: _memory(handle))
    except pynvml.NVMLError as error:
        if error.value in nvml_words.SESSION_LOST:
            _close()  # the next call opens a new one: the driver may have been loaded again
        text, _ = nvml_words.gpu_failure(error)
        raise DeviceUnavailable(f"Device {device_id} cannot be sampled: {text}") from error
    return DeviceSample(
        util=None if rates is None else min(1.0, rates.gpu / 100),
        memory_used_bytes=None if memory is None else memory[1],
    )


def _list_gpu(index: int, host_memory_bytes: int) -> tuple[list[DeviceInfo], list[Finding]]:
    findings: list[Finding] = []
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
    subject = f"GPU {index}"
    mode = _if_told(lambda: pynvml.nvmlDeviceGetComputeMode(handle))
    if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED:
        findings.append(
            Finding(
                "warning",
                subject,
                "Left out: its compute mode is Prohibited.",
                f"Allow computing: `sudo nvidia-smi -i {index} -c DEFAULT`.",
            )
        )
        return [], findings
    if mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
        findings.append(
            Finding(
                "warning",
                subject,
                "Its compute mode is Exclusive Process: runs cannot share it, and the next run "
                f"cannot get ready on it while one is {within('saving')}.",
                f"Allow sharing: `sudo nvidia-smi -i {index} -c DEFAULT`.",
            )
        )

    cores = _near_cores(handle)
    mig_mode = _if_told(lambda: pynvml.nvmlDeviceGetMigMode(handle))
    if mig_mode and mig_mode[0]:
        instances = _list_instances(handle, index, uuid, cores)
        if not instances:
            findings.append(
                Finding(
                    "warning",
                    subject,
                    "Left out: MIG is enabled on it, but it has no MIG instances.",
                    f"Turn MIG off (`sudo nvidia-smi -i {index} -mig 0`), or create instances: one that is all of "
                    f"it (`sudo nvidia-smi mig -i {index} -cgi 0 -C`), or smaller ones (`nvidia-smi mig -lgip`).",
                )
            )
        return instances, findings

    memory = _unless_unsupported(lambda: _memory(handle))
    if memory is None:
        findings.append(
            Finding(
                "warning",
                subject,
                "The driver reports no memory size for it, as it shares the machine's memory: the "
                "machine's memory is counted as its own.",
                "State gpu_memory for runs on it, and leave room for the system: `free -h` shows what there is.",
            )
        )
    return [
        DeviceInfo(
            id=uuid,
            kind=_name(handle),
            memory_bytes=memory[0] if memory else host_memory_bytes,
            virtual=False,
            index=index,
            cores=cores,
            capability=_capability(handle),
        )
    ], findings


def _list_instances(handle: Any, index: int, parent: str, cores: tuple[int, ...]) -> list[DeviceInfo]:
    instances = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except pynvml.NVMLError_NotFound:
            continue  # slots are numbered through, used or not
        uuid = str(pynvml.nvmlDeviceGetUUID(instance))
        memory_bytes = _memory(instance)[0]
        found = DeviceInfo(uuid, _name(instance), memory_bytes, False, index, cores, parent, _capability(handle))
        instances.append(found)
    return instances


def _memory(handle: Any) -> tuple[int, int]:
    """Usable and used bytes. The newer call tells apart what the driver keeps; the older counts that as used."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved), int(memory.used)
    except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(memory.total), int(memory.used)


def _name(handle: Any) -> str:
    return str(_if_told(lambda: pynvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU")


def _capability(handle: Any) -> tuple[int, int] | None:
    told = _if_told(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    return None if told is None else (int(told[0]), int(told[1]))


def _near_cores(handle: Any) -> tuple[int, ...]:
    words = (os.cpu_count() or 1) // 64 + 1
    masks = _if_told(lambda: list(pynvml.nvmlDeviceGetCpuAffinity(handle, words)))
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    near = (64 * word + bit for word, mask in enumerate(masks or ()) for bit in range(64) if mask >> bit & 1)
    return tuple(core for core in near if core in allowed)


def _unless_unsupported(ask: Callable[[], Any]) -> Any:
    """The answer, or None where this GPU or this driver has no such thing. Other errors are errors."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in nvml_words.UNSUPPORTED:
            return None
        raise


def _if_told(ask: Callable[[], Any]) -> Any:
    """The answer, or None where none is to be had: a GPU is not given up for something it can do without."""
    try:
        return ask()
    except pynvml.NVMLError as error:
        if error.value in nvml_words.GPU_GONE:
            raise
        return None


def open_session() -> None:
    """Open the session with the driver, if this process has none. Raises pynvml.NVMLError."""
    global _session_pid
    with _session_lock:
        if _session_pid != os.getpid():
            pynvml.nvmlInit()
            _session_pid = os.getpid()


def _close() -> None:
    global _session_pid
    with _session_lock:
        if _session_pid == os.getpid():
            _session_pid = None
            with suppress(pynvml.NVMLError):  # what is lost need not be closed
                pynvml.nvmlShutdown()
