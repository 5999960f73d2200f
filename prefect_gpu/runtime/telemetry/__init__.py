"""What a node has and what its devices do: inventory, and samples of single devices.

What needs other people's packages (psutil, NVIDIA's) is only imported when it is used: the controller works without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prefect_gpu.runtime.telemetry.findings import Finding

if TYPE_CHECKING:
    from prefect_gpu.runtime.telemetry.inventory import NodeInventory, take_inventory
    from prefect_gpu.runtime.telemetry.nvml import DeviceInfo, DeviceSample, DeviceUnavailable, sample_device

__all__ = [
    "DeviceInfo",
    "DeviceSample",
    "DeviceUnavailable",
    "Finding",
    "NodeInventory",
    "sample_device",
    "take_inventory",
]

_HOMES = {
    **dict.fromkeys(("NodeInventory", "take_inventory"), "inventory"),
    **dict.fromkeys(("DeviceInfo", "DeviceSample", "DeviceUnavailable", "sample_device"), "nvml"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
