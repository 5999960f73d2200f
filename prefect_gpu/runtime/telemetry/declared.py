"""Virtual devices as an operator declares them: so many, or so many of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from prefect_gpu.units import parse_bytes, shown

_GROUP = re.compile(r"(\d{1,6})(?:\s*x\s*([A-Za-z][\w .]*?)(?:-(\d[\d.]*\s*[kKmMgGtT]?i?[bB]?))?(\+nvlink)?)?")
_MOST = 1024  # of one node

# NVIDIA's table "CUDA GPU Compute Capability" (developer.nvidia.com/cuda-gpus), of what is common in pools.
_CAPABILITIES = {
    "p100": (6, 0), "v100": (7, 0), "t4": (7, 5), "a100": (8, 0), "a30": (8, 0), "a10": (8, 6), "a40": (8, 6),
    "l4": (8, 9), "l40": (8, 9), "l40s": (8, 9), "h100": (9, 0), "h200": (9, 0), "gh200": (9, 0), "b200": (10, 0),
}  # fmt: skip


class Declared(NamedTuple):
    """One virtual device.

    Attributes:
        kind: ``virtual``, or ``virtual A100``: it is never called a GPU.
        memory_bytes: None: as the pool's virtual devices have it.
        capability: That of the kind, if it is a common one.
        links: Numbers of the devices that it is taken to reach over NVLink.
    """

    kind: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    links: tuple[int, ...]


def declared(text: str | int) -> list[Declared]:
    """The devices that a declaration names, in order.

    Args:
        text: ``2``, or ``2xA100-40GiB,4xT4-16GiB``. The memory may be left out; ``+nvlink`` at the end of a kind says
            that its devices are connected: ``4xA100-40GiB+nvlink``.

    Raises:
        ValueError: It names none, in words that name the remedy.

    Example:
        >>> [one.kind for one in declared("1xA100-40GiB,1xT4")]
        ['virtual A100', 'virtual T4']
    """
    found: list[Declared] = []
    for count, kind, memory, linked in _groups(str(text)):
        if len(found) + count > _MOST:
            raise ValueError(f"{shown(text)} are more than {_MOST} devices: declare fewer")
        own = range(len(found), len(found) + count)
        name = f"virtual {kind}" if kind else "virtual"
        for number in own:
            links = tuple(other for other in own if other != number) if linked else ()
            found.append(Declared(name, memory, _CAPABILITIES.get(kind.lower().split()[0] if kind else ""), links))
    return found


def _groups(text: str) -> Iterator[tuple[int, str, int | None, bool]]:
    for part in text.split(","):
        match = _GROUP.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{shown(text)} is no number of devices: write 2, or 2xA100-40GiB,4xT4-16GiB")
        count, kind, memory, linked = match.groups()
        size = parse_bytes(memory, field=f"memory of {kind}") if memory else None
        yield int(count), kind or "", size, bool(linked)
