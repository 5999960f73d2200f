"""``prefect-gpu devices``: what a worker on this node could give to runs."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from pathlib import Path

    from prefect_gpu.runtime.devices.cordons import Cordoned
    from prefect_gpu.runtime.telemetry import DeviceInfo, DeviceSample

_WIDE = 110  # columns of a terminal in which whole UUIDs find room


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON for programs.")] = False,
) -> None:
    """Show the devices, cores and memory of this node, and what of it is in use now.

    Ends with code 1 if no run could be given a device here.
    """
    settings = common.load_settings()
    from rich.markup import escape

    from prefect_gpu.cli.status import left_alone, served_devices
    from prefect_gpu.reporting.tables import FIGURES, WHOLE, WORDS, plain_table
    from prefect_gpu.runtime.telemetry import take_inventory
    from prefect_gpu.units import format_bytes

    node = take_inventory(
        virtual_devices=settings.virtual_devices,
        virtual_device_memory_bytes=settings.virtual_device_memory_bytes,
    )
    samples = {device.id: _sample(device) for device in node.devices}
    broken = any(finding.level == "error" for finding in node.findings)
    if as_json:
        common.print_json({"ok": not broken, "node": node, "samples": samples})
        raise typer.Exit(int(broken))

    screen = common.console()
    screen.print(
        f"[bold]{node.hostname}[/]: {common.plural(len(node.cpus), 'core')} ({common.ranges(node.cpus)}), "
        f"{format_bytes(node.memory_bytes)} of memory"
    )
    if node.devices:
        real = any(not device.virtual for device in node.devices)
        columns = [("Device", WHOLE), ("Kind", WORDS), ("Memory", FIGURES)]
        if real:
            columns += [("GPU", FIGURES), ("Near cores", WHOLE), ("In use", FIGURES), ("Busy", FIGURES)]
        table = plain_table(*columns)
        for device in node.devices:
            shown = device.id if screen.width >= _WIDE else common.short_id(device.id)
            cells = [shown, device.kind, format_bytes(device.memory_bytes)]
            if device.virtual:
                cells[1] = f"{device.kind} (trains on the CPU)"
            if real:
                cells += _real_cells(device, samples[device.id])
            table.add_row(*cells)
        screen.print(table)
        screen.print()
    filed = _out_of_service(settings.resolved_state_dir)
    for device_id, cordoned in sorted(filed.items()):
        since = (
            ""
            if cordoned.is_out(time.time())
            else f" from {datetime.fromtimestamp(cordoned.by or 0.0):%Y-%m-%d %H:%M} on"
        )
        screen.print(
            f"[red]Out of service{since}[/]: {escape(f'{device_id} ({cordoned.reason})')}. `prefect-gpu uncordon` puts "
            "it back."
        )
    told = served_devices(settings.resolved_state_dir)
    for device_id, words in left_alone(told, filed).items():
        screen.print(f"[yellow]In use[/]: {escape(f'{device_id}: {words}')}. Runs get it once that has ended.")
    for one in told:
        if one.get("unwell") and not one["cordoned"]:
            words = f"{one['id']} ({one['unwell']})"
            screen.print(f"[yellow]Not quite well[/]: {escape(words)}. It stays in service.")
    common.print_findings(screen, (finding for finding in node.findings if finding.level != "ok"))
    raise typer.Exit(int(broken))


def _out_of_service(state_dir: Path) -> dict[str, Cordoned]:
    from prefect_gpu.runtime.devices.cordons import Cordons
    from prefect_gpu.runtime.disk.files import UnreadableError

    try:
        return Cordons(state_dir).read()
    except UnreadableError as error:
        common.fail(str(error))


def _sample(device: DeviceInfo) -> DeviceSample | None:
    from prefect_gpu.runtime.telemetry import DeviceUnavailable, sample_device

    if device.virtual:
        return None
    try:
        return sample_device(device.id)
    except DeviceUnavailable:
        return None  # it was there a moment ago; the next look will say what is wrong


def _real_cells(device: DeviceInfo, sample: DeviceSample | None) -> list[str]:
    from prefect_gpu.units import format_bytes

    used = sample.memory_used_bytes if sample else None
    util = sample.util if sample else None
    number = "" if device.index is None else str(device.index)
    return [
        f"{number} (MIG)" if device.parent else number,
        common.ranges(device.cores) or "–",
        "–" if used is None else format_bytes(used),
        "–" if util is None else f"{util:.0%}",
    ]
