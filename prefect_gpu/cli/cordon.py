"""``prefect-gpu cordon`` and ``uncordon``: take a device out of service, and put it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from prefect_gpu.cli import common
from prefect_gpu.units import parse_seconds

if TYPE_CHECKING:
    from pathlib import Path

    from prefect_gpu.runtime.devices.cordons import Cordons

_BY_HAND = "by hand"
_Devices = Annotated[
    list[str], typer.Argument(help="Devices as `prefect-gpu status` names them, or the beginning of a name.")
]


def cordon(
    devices: _Devices,
    reason: Annotated[str, typer.Option(help="Why, in words: it is shown wherever the device is.")] = _BY_HAND,
    by: Annotated[
        str | None,
        typer.Option(
            help="When they are needed: a time of day such as 18:00, a date such as 2026-03-01T18:00, or a length of "
            "time such as 2h. Until then they are used by runs that are done, or have saved, in time.",
            show_default="now",
        ),
    ] = None,
) -> None:
    """Give these devices to nobody any more. Runs that may be stopped carry on elsewhere, others end where they are.

    The name of a node stands for all of its devices.

    It holds for all workers that use this state folder, until `prefect-gpu uncordon`.
    """
    cordons, known, nodes = _cordons()
    from prefect_gpu.runtime.disk.files import UnreadableError

    try:
        chosen = _chosen(devices, nodes, known)
        moment = None if by is None else _moment(by, datetime.now().astimezone())
        stay = cordons.add(
            dict.fromkeys(chosen, reason.strip() or _BY_HAND), None if moment is None else moment.timestamp()
        )
    except UnreadableError as error:
        common.fail(str(error))
    except OSError as error:
        _cannot_be_changed(cordons, error)
    when = "" if moment is None else f" from {moment:%Y-%m-%d %H:%M:%S %Z} on"
    screen = common.console()
    if stay:
        screen.print(f"Out of service already, and not put back until then: {', '.join(stay)}.")
    if taken := [device for device in chosen if device not in stay]:
        screen.print(f"Out of service{when}: {', '.join(taken)}. Workers heed it within a second or two.")


def uncordon(devices: _Devices) -> None:
    """Put these devices back into service."""
    cordons, _, nodes = _cordons()
    from prefect_gpu.runtime.disk.files import UnreadableError

    try:
        cordoned = sorted(cordons.read())
        _fail_if_left_alone(devices, cordons.file.parent, cordoned)
        if not cordoned:
            common.fail("no device is out of service.", code=2)
        chosen = _chosen(devices, nodes, cordoned, "no such device is out of service")
        cordons.remove(*chosen)
    except UnreadableError as error:
        common.fail(str(error))
    except OSError as error:
        _cannot_be_changed(cordons, error)
    common.console().print(f"In service again: {', '.join(chosen)}.")


def _fail_if_left_alone(asked: Sequence[str], state_dir: Path, filed: Sequence[str]) -> None:
    """End the command if a device is meant that a worker leaves to programs outside the pool."""
    from prefect_gpu.cli.status import left_alone, served_devices

    for device, why in left_alone(served_devices(state_dir), filed).items():
        if any(device.startswith(name) for name in asked):
            common.fail(
                f"{device}: {why}. End that, and runs get the device within seconds; or start the worker with "
                "PREFECT_INTEGRATIONS_GPU_HEED_OUTSIDE=false."
            )


def _chosen(
    asked: Sequence[str],
    nodes: Mapping[str, Sequence[str]],
    known: Sequence[str],
    if_none: str = "there is no such device",
) -> list[str]:
    """Devices, each one once. The name of a node stands for those of its devices that are known."""
    of_nodes = {node: [device for device in devices if device in known] for node, devices in nodes.items()}
    return list(dict.fromkeys(one for name in asked for one in of_nodes.get(name) or [_one_of(name, known, if_none)]))


def _cordons() -> tuple[Cordons, list[str], dict[str, list[str]]]:
    """The state folder's; the devices that workers serve now or that this machine has; and those of each node."""
    from prefect_gpu.cli.status import served_devices
    from prefect_gpu.runtime.devices.cordons import Cordons
    from prefect_gpu.runtime.telemetry import take_inventory

    settings = common.load_settings()
    folder = settings.resolved_state_dir
    nodes: dict[str, list[str]] = {}
    for device in served_devices(folder):
        nodes.setdefault(device["node"], []).append(device["id"])
    served = [device for devices in nodes.values() for device in devices]
    here = take_inventory(
        virtual_devices=settings.virtual_devices, virtual_device_memory_bytes=settings.virtual_device_memory_bytes
    )
    nodes.setdefault(here.hostname, [device.id for device in here.devices])
    return Cordons(folder), sorted({*served, *(device.id for device in here.devices)}), nodes


def _cannot_be_changed(cordons: Cordons, error: OSError) -> NoReturn:
    common.fail(
        f"{cordons.file} cannot be changed: {error.strerror}. Be a user who may write it, the worker's, and see that "
        "there is room."
    )


def _moment(by: str, now: datetime) -> datetime:
    """The moment that is meant: the next such time of day, a date, or so much later than now; else the command ends."""
    try:
        # A number is one of seconds. Newer Pythons would take it for a time.
        at = time.fromisoformat(by if ":" in by else "")
        today = now.astimezone(at.tzinfo).date()  # it may be another day there
        days, twice = (today, today + timedelta(days=1)), (0, 1)  # an hour of a night in autumn comes twice
        found = (_here(datetime.combine(day, at.replace(fold=fold))) for day in days for fold in twice)
        return next(moment for moment in found if moment > now)
    except ValueError:
        pass
    try:
        return _here(datetime.fromisoformat(by.replace("Z", "+00:00")))
    except (ValueError, OverflowError):
        pass
    try:
        return now + timedelta(seconds=parse_seconds(by))
    except (ValueError, OverflowError):
        common.fail(
            f"--by {by!r} is no moment: give a time such as 18:00, a date such as 2026-03-01T18:00, or 2h.", code=2
        )


def _here(moment: datetime) -> datetime:
    """Without a zone, this machine's is meant, as it is at that moment: summer time may begin or end until then."""
    if moment.tzinfo is not None:
        return moment
    # A time that the clocks leave out in spring is after the change; astimezone() alone takes it for one before.
    return datetime.fromtimestamp(moment.timestamp()).astimezone()


def _one_of(device: str, known: Sequence[str], if_none: str) -> str:
    """The device with this id, or the only one whose id begins so; else the command ends."""
    found = [device] if device in known else [one for one in known if one.startswith(device)]
    if len(found) != 1:
        why = f"{len(found)} devices begin so" if found else if_none
        common.fail(f"{device!r}: {why}. Give one of {', '.join(known)}.", code=2)
    return found[0]
