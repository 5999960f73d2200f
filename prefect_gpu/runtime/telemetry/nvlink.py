"""Which GPUs of a machine are connected over NVLink, as NVML tells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pynvml

if TYPE_CHECKING:
    from prefect_gpu.runtime.telemetry.nvml import DeviceInfo

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH: whoever has links to switches reaches all others that have


def with_links(devices: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """The devices, with whom each reaches over NVLink. MIG instances have no links; nothing that fails is an error."""
    whole = [device for device in devices if device.parent is None]
    if len(whole) < 2:
        return tuple(devices)
    by_bus: dict[str, str] = {}
    ends: dict[str, set[str]] = {}
    for device in whole:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(device.id)
            by_bus[_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)] = device.id
            ends[device.id] = _ends(handle)
        except pynvml.NVMLError:
            continue
    on_switch = {uuid for uuid, found in ends.items() if "" in found}
    links = {
        uuid: ({by_bus[bus] for bus in found if bus in by_bus} | (on_switch if uuid in on_switch else set())) - {uuid}
        for uuid, found in ends.items()
    }
    order = [device.id for device in whole]
    return tuple(
        replace(device, links=tuple(uuid for uuid in order if uuid in links[device.id]))
        if links.get(device.id)
        else device
        for device in devices
    )


def _ends(handle: Any) -> set[str]:
    """Where a GPU's links that are up lead: bus ids of GPUs, and "" for a switch."""
    found: set[str] = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except pynvml.NVMLError:
            break  # it has no more links, or none at all
        try:
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _SWITCH:
                found.add("")
                continue
        except pynvml.NVMLError:
            pass  # an older driver tells only where the link leads
        try:
            found.add(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))
        except pynvml.NVMLError:
            continue
    return found


def _text(bus: Any) -> str:
    return bus.decode() if isinstance(bus, bytes) else str(bus)
