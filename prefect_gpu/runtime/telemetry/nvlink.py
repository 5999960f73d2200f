"""Which GPUs of a machine are connected over NVLink, as NVML tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pynvml

_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH: whoever has links to switches reaches all others that have


def links_between(uuids: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Which others each of some GPUs reaches over NVLink, in their order. Nothing that fails is an error."""
    if len(uuids) < 2:
        return {}
    by_bus: dict[str, str] = {}
    ends: dict[str, set[str]] = {}
    for uuid in uuids:
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            by_bus[_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)] = uuid
            ends[uuid] = _ends(handle)
        except pynvml.NVMLError:
            continue
    on_switch = {uuid for uuid, found in ends.items() if "" in found}
    reached = {
        uuid: {by_bus[bus] for bus in found if bus in by_bus} | (on_switch if uuid in on_switch else set())
        for uuid, found in ends.items()
    }
    return {uuid: tuple(one for one in uuids if one in found and one != uuid) for uuid, found in reached.items()}


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
