"""What this node has: cores, memory, and devices, real ones or, where there is no driver, declared ones."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from prefect_gpu.runtime.telemetry import host
from prefect_gpu.runtime.telemetry.declared import declared
from prefect_gpu.runtime.telemetry.findings import Finding
from prefect_gpu.runtime.telemetry.nvml import DeviceInfo, list_devices
from prefect_gpu.runtime.telemetry.visible import Visibility
from prefect_gpu.units import format_bytes, plural

_HIDDEN = (
    "CUDA_VISIBLE_DEVICES is set and names no GPU, so none is used.",
    "To use this machine's GPUs: `unset CUDA_VISIBLE_DEVICES`.",
)


@dataclass(frozen=True)
class NodeInventory:
    """What a node has for runs.

    Attributes:
        hostname: The node's name.
        cpus: Core numbers that runs may be bound to.
        memory_bytes: Memory of the machine, or of the container if that has less.
        devices: Devices that runs can be given. All are real, or all are virtual.
        findings: What a person should know about it.
    """

    hostname: str
    cpus: tuple[int, ...]
    memory_bytes: int
    devices: tuple[DeviceInfo, ...]
    findings: tuple[Finding, ...]


def take_inventory(*, virtual_devices: int | str, virtual_device_memory_bytes: int) -> NodeInventory:
    """Look at this node. Nothing that a driver may answer raises; it becomes a finding.

    Virtual devices are used where there is no NVIDIA driver, and where CUDA_VISIBLE_DEVICES is set but empty,
    which says that no GPU is wanted. A driver that fails does not lead to them: the node then has no device.

    Args:
        virtual_devices: How many to declare, 0 for none, or which: see :func:`.declared`.
        virtual_device_memory_bytes: Memory of those for which that says none.

    Example:
        >>> take_inventory(virtual_devices=2, virtual_device_memory_bytes=8 * 2**30).devices[0].id
        'virtual-0'
    """
    memory_bytes = host.usable_memory_bytes()
    findings: list[Finding] = []
    visibility = Visibility.from_environment(os.environ)
    devices: tuple[DeviceInfo, ...] = ()
    if visibility.hides_all:
        no_driver: tuple[str, str] | None = _HIDDEN
    else:
        listing = list_devices(host_memory_bytes=memory_bytes, about=visibility.indices)
        no_driver = listing.no_driver
        findings += listing.findings
        if no_driver is None and not any(finding.level == "error" for finding in listing.findings):
            devices = _visible(listing.devices, visibility, findings)
        if len({device.kind for device in listing.devices}) > 1:
            findings += _order_finding(visibility, os.environ)

    if no_driver:
        devices = _declare(virtual_devices, virtual_device_memory_bytes)
    findings.insert(0, _summary(devices, no_driver))
    cpus = host.usable_cpus()
    findings += _host_findings(cpus, memory_bytes, devices)
    return NodeInventory(socket.gethostname(), cpus, memory_bytes, devices, tuple(findings))


def _visible(
    devices: tuple[DeviceInfo, ...], visibility: Visibility, findings: list[Finding]
) -> tuple[DeviceInfo, ...]:
    """The devices that CUDA_VISIBLE_DEVICES names, in its order; a name without a device is a finding."""
    if visibility.entries is None:
        return devices
    named: list[tuple[int, DeviceInfo]] = []
    used: set[int] = set()
    for device in devices:
        uuids = [device.id, *([device.parent] if device.parent else [])]
        positions = visibility.positions(-1 if device.index is None else device.index, uuids)
        used.update(positions)
        if positions:
            named.append((positions[0], device))
    unknown = [entry for position, entry in enumerate(visibility.entries) if position not in used]
    if unknown:
        findings.append(
            Finding(
                "warning",
                "CUDA_VISIBLE_DEVICES",
                f"It names {', '.join(unknown)}, which this machine does not have or cannot use.",
                "See which GPUs there are (`nvidia-smi -L`), or use all of them: `unset CUDA_VISIBLE_DEVICES`.",
            )
        )
    return tuple(device for _, device in sorted(named, key=lambda pair: pair[0]))


def _order_finding(visibility: Visibility, environ: Mapping[str, str]) -> list[Finding]:
    """With unlike GPUs, CUDA numbers the fastest first and NVML goes by the bus: an index may mean another GPU."""
    by_index = any(entry.isdigit() for entry in visibility.entries or ())
    if not by_index or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":
        return []
    return [
        Finding(
            "warning",
            "CUDA_VISIBLE_DEVICES",
            "It names GPUs by number, and this machine has several kinds, which CUDA may number differently.",
            "Name them by UUID (`nvidia-smi -L`), or `export CUDA_DEVICE_ORDER=PCI_BUS_ID`.",
        )
    ]


def _declare(text: int | str, memory_bytes: int) -> tuple[DeviceInfo, ...]:
    return tuple(
        DeviceInfo(
            id=f"virtual-{number}",
            kind=one.kind,
            memory_bytes=one.memory_bytes or memory_bytes,
            virtual=True,
            capability=one.capability,
            links=tuple(f"virtual-{other}" for other in one.links),
        )
        for number, one in enumerate(declared(text))
    )


def _summary(devices: tuple[DeviceInfo, ...], no_driver: tuple[str, str] | None) -> Finding:
    if no_driver:
        why, remedy = no_driver
        if not devices:
            return Finding(
                "error",
                "devices",
                f"{why} No virtual devices are declared either, so there is nothing to run on.",
                f"{remedy} To train on the CPU: `export PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES=2`.",
            )
        return Finding(
            "warning",
            "devices",
            f"{why} Runs use {_virtual(devices)}: they train on the CPU. These are not GPUs.",
            remedy,
        )
    if not devices:
        return Finding(
            "error",
            "devices",
            "There is an NVIDIA driver, but no GPU that can be used.",
            'See what it says: `nvidia-smi`. To train on the CPU: `export CUDA_VISIBLE_DEVICES=""`.',
        )
    return Finding("ok", "devices", _counted(devices))


def _counted(devices: tuple[DeviceInfo, ...]) -> str:
    counts = Counter((device.kind, device.memory_bytes) for device in devices)
    return ", ".join(f"{n} × {kind} ({format_bytes(size)})" for (kind, size), n in counts.items())


def _virtual(devices: tuple[DeviceInfo, ...]) -> str:
    if len({(device.kind, device.memory_bytes) for device in devices}) > 1 or devices[0].kind != "virtual":
        return f"virtual devices, {_counted(devices)}"
    return f"{plural(len(devices), 'virtual device')} of {format_bytes(devices[0].memory_bytes)}"


def _host_findings(cpus: tuple[int, ...], memory_bytes: int, devices: tuple[DeviceInfo, ...]) -> list[Finding]:
    findings = []
    quota = host.cpu_quota()
    if quota is not None and quota < len(cpus):
        findings.append(
            Finding(
                "warning",
                "cores",
                f"This container may use {quota:g} cores' worth of time but sees {plural(len(cpus), 'core')}, so runs "
                "may be slowed down by runs that share no core with them.",
                "Bind the container to cores instead of limiting its time: "
                f"`docker run --cpuset-cpus=0-{max(1, round(quota)) - 1}`.",
            )
        )
    declared = sum(device.memory_bytes for device in devices if device.virtual)
    if declared > memory_bytes:
        findings.append(
            Finding(
                "warning",
                "memory",
                f"The virtual devices have {format_bytes(declared)} in all, the machine only "
                f"{format_bytes(memory_bytes)}: runs that use what they are given can run out of memory.",
                "Declare less: `export PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICE_MEMORY="
                f"{memory_bytes // len(devices) >> 20}MiB`.",
            )
        )
    return findings
