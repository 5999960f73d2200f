"""``prefect-gpu cordon`` and ``uncordon``: take a device out of service, and put it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from prefect_gpu.cli import common

if TYPE_CHECKING:
    from prefect_gpu.runtime.cordons import Cordons

_Devices = Annotated[
    list[str], typer.Argument(help="Devices as `prefect-gpu status` names them, or the beginning of a name.")
]


def cordon(
    devices: _Devices,
    reason: Annotated[str, typer.Option(help="Why, in words: it is shown wherever the device is.")] = "by hand",
) -> None:
    """Give these devices to nobody any more. Runs that may be stopped carry on elsewhere, others end where they are.

    It holds for all workers that use this state folder, until `prefect-gpu uncordon`.
    """
    cordons, known = _cordons()
    from prefect_gpu.runtime.files import UnreadableError

    try:
        chosen = [_one_of(device, known) for device in devices]
        cordons.add(dict.fromkeys(chosen, reason))
    except (UnreadableError, OSError) as error:
        common.fail(str(error))
    common.console().print(f"Out of service: {', '.join(chosen)}. Workers heed it within a second or two.")


def uncordon(devices: _Devices) -> None:
    """Put these devices back into service."""
    cordons, _ = _cordons()
    from prefect_gpu.runtime.files import UnreadableError

    try:
        cordoned = sorted(cordons.read())
        if not cordoned:
            common.fail("no device is out of service.", code=2)
        chosen = [_one_of(device, cordoned) for device in devices]
        cordons.remove(*chosen)
    except (UnreadableError, OSError) as error:
        common.fail(str(error))
    common.console().print(f"In service again: {', '.join(chosen)}.")


def _cordons() -> tuple[Cordons, list[str]]:
    """The state folder's, and the devices that workers serve now or that this machine has."""
    from prefect_gpu.cli.status import ask
    from prefect_gpu.runtime.cordons import Cordons
    from prefect_gpu.runtime.telemetry import take_inventory

    settings = common.load_settings()
    folder = settings.resolved_state_dir
    served = [device["id"] for told in ask(folder / "pages", None) for device in told["devices"]]
    here = take_inventory(
        virtual_devices=settings.virtual_devices, virtual_device_memory_bytes=settings.virtual_device_memory_bytes
    )
    return Cordons(folder), sorted({*served, *(device.id for device in here.devices)})


def _one_of(device: str, known: list[str]) -> str:
    """The device with this id, or the only one whose id begins so; else the command ends."""
    found = [device] if device in known else [one for one in known if one.startswith(device)]
    if len(found) != 1:
        why = f"{len(found)} devices begin so" if found else "there is no such device"
        common.fail(f"{device!r}: {why}. Give one of {', '.join(known)}.", code=2)
    return found[0]
