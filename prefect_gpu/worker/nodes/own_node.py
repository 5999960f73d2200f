"""Which devices and cores of this machine the worker manages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.runtime.telemetry import take_inventory
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.settings import GpuSettings
from prefect_gpu.units import plural


def claim_node(
    pool: str, settings: GpuSettings, locks: Locks, printer: Callable[..., None], logger: logging.Logger
) -> Node:
    """This machine, with the devices that no other worker on it manages; they are ours from now on.

    Args:
        pool: Name of the pool that they serve.
        locks: Where workers on this machine note what is theirs.
        printer: Tells the worker's user which they are.
    """
    inventory = take_inventory(
        virtual_devices=settings.virtual_devices,
        virtual_device_memory_bytes=settings.virtual_device_memory_bytes,
    )
    for finding in inventory.findings:
        if finding.level != "ok":
            logger.warning("%s %s", finding.text, finding.remedy or "")
    found = [
        Device(
            info.id,
            info.kind,
            info.memory_bytes,
            info.virtual,
            tuple(info.cores),
            capability=info.capability,
            links=info.links,
        )
        for info in inventory.devices
    ]
    ours, others = locks.lock_devices(found)
    for device in others:
        logger.warning("Another worker on this machine manages %s; this worker does not use it.", device.id)
    if others and not ours:
        aside = (
            "give one of them a state folder of its own, PREFECT_INTEGRATIONS_GPU_STATE_DIR"
            if others[0].virtual
            else "show each of them its part of the GPUs only, CUDA_VISIBLE_DEVICES"
        )
        logger.error(
            "This worker has no device, as another one manages them all: runs that ask for a GPU will be refused. End "
            f"that worker and start this one anew; or {aside}."
        )
    else:
        say_devices(pool, ours, printer, logger)
    return Node(inventory.hostname, tuple(ours), inventory.cpus)


def say_devices(
    pool: str, devices: Sequence[Device], printer: Callable[..., None], logger: logging.Logger, where: str = ""
) -> None:
    """Tell the worker's user what the pool is served with.

    Args:
        where: Which nodes they are on, if they are not on this machine.
    """
    if not devices:
        logger.error("This worker has no device: runs that ask for a GPU will be refused. Run `prefect-gpu doctor`.")
        return
    names = ", ".join(device.id if device.kind == "virtual" else f"{device.id} ({device.kind})" for device in devices)
    some = plural(len(devices), "virtual device" if devices[0].virtual else "device")
    if devices[0].virtual:
        some += f", which {'are not GPUs' if len(devices) > 1 else 'is not a GPU'}"
    printer(f"Serving pool {pool!r} with {some}{where}: {names}")
