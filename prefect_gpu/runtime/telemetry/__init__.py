"""What a node has and what its devices do: inventory, and samples of single devices."""

from __future__ import annotations

from prefect_gpu.runtime.telemetry.findings import Finding
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
