"""What runs may ask of the machines that their containers are on: what the worker's operator lets them, and no more.

Whoever may submit a run writes its job variables, and may submit another one from within it. So they say what a run
would like, and the worker's settings say what it may have.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from prefect_gpu.runtime.drivers.base import ContainerSpec
from prefect_gpu.settings import GpuSettings
from prefect_gpu.units import format_bytes

_MODES = frozenset(("", "ro", "rw", "z", "Z", "nocopy"))  # none that lets mounts out of the container
_OURS = "prefect-gpu"


def permitted(asked: ContainerSpec, settings: GpuSettings) -> ContainerSpec:
    """The container that a run gets.

    Raises:
        ValueError: It asks for what it may not have. The message names the job variable, its value and the setting.
    """
    for volume in asked.volumes:
        _check_volume(volume, settings.container_volumes)
    if asked.network == "none":  # of Docker's networks, the one in which nobody is
        raise ValueError(
            f"network={asked.network!r} is not allowed: the run could reach neither Prefect nor the worker. Leave it "
            "out, or name a network from which it reaches both."
        )
    if asked.network and not _matches(asked.network, settings.container_networks):
        allowed = _listed(settings.container_networks)
        raise ValueError(
            f"network={asked.network!r} is not allowed: this worker lets runs join {allowed}. Leave it out, or "
            "ask its operator to name it in PREFECT_INTEGRATIONS_GPU_CONTAINER_NETWORKS."
        )
    if not _matches(asked.image, settings.container_images):
        raise ValueError(
            f"image={asked.image!r} is not allowed: this worker runs {_listed(settings.container_images)}. Take one of "
            "these, or ask its operator to name it in PREFECT_INTEGRATIONS_GPU_CONTAINER_IMAGES."
        )
    return replace(
        asked,
        memory_bytes=_within("memory_limit", asked.memory_bytes, settings.container_memory_max_bytes, "MEMORY_MAX"),
        shm_bytes=_at_most("shm_size", asked.shm_bytes, settings.container_shm_max_bytes, "SHM_MAX"),
        labels={name: value for name, value in asked.labels.items() if not name.startswith(f"{_OURS}.")},
        user=settings.container_user or "",
        pids=settings.container_pids_max or None,
        privileges=settings.container_privileges,
    )


def _check_volume(volume: str, allowed: Iterable[str]) -> None:
    source, _, rest = volume.partition(":")
    _, _, modes = rest.partition(":")
    asked = set(modes.split(","))
    if not source or not rest or asked - _MODES:
        raise ValueError(
            f"volumes={volume!r} is not allowed: write /on/the/node:/in/the/container, and :ro behind it for read-only."
        )
    for entry in allowed:
        place, read_only = (entry[: -len(":ro")], True) if entry.endswith(":ro") else (entry, False)
        if _covers(place, source) and (not read_only or "ro" in asked):
            return
    raise ValueError(
        f"volumes={volume!r} is not allowed: this worker lets runs mount {_listed(allowed)}. Leave it out, or ask its "
        "operator to name the folder in PREFECT_INTEGRATIONS_GPU_CONTAINER_VOLUMES."
    )


def _covers(place: str, source: str) -> bool:
    """Whether a folder of the node is, or is below, one that is allowed; a Docker volume is known by its name."""
    if place == "*":
        return True
    if not place.startswith("/") or not source.startswith("/"):
        return not source.startswith("/") and not source.startswith(_OURS) and fnmatchcase(source, place)
    folder = posixpath.normpath(source)  # what .. leads to
    return posixpath.commonpath((posixpath.normpath(place), folder)) == posixpath.normpath(place)


def _within(field: str, asked: int | None, most: int | None, setting: str) -> int | None:
    """What a run gets of something that is unlimited unless it is asked for."""
    return _at_most(field, asked, most, setting) or most


def _at_most(field: str, asked: int | None, most: int | None, setting: str) -> int | None:
    if asked is not None and most is not None and asked > most:
        raise ValueError(
            f"{field}={format_bytes(asked)} is not allowed: this worker gives a run at most {format_bytes(most)}. Ask "
            f"for less, or ask its operator to raise PREFECT_INTEGRATIONS_GPU_CONTAINER_{setting}."
        )
    return asked


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _listed(allowed: Iterable[str]) -> str:
    return ", ".join(allowed) or "none"
