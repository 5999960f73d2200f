"""Kinds of devices: what a job says about the devices that it wants, and which devices that is true of.

The rule of names: a name is its words, in small letters, and a wanted name fits a device whose name has all of these
words. So ``A100`` fits ``NVIDIA A100-SXM4-40GB``, and so does ``a100 40GiB``; ``A10`` does not. A MIG instance is only
a slice of its GPU: it fits a wanted name that has ``mig`` or a profile such as ``1g.5gb`` in it, and no other.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import eq, ge, gt, le, lt

from prefect_gpu.scheduling.model.cluster import Device

LISTED, ENDS_FIRST = "listed", "ends-first"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(?:gb|gib|g)")
_PROFILE = re.compile(r"\d+g\.\d+gb.*|mig")
_COMPARE: dict[str, Callable[[tuple[int, int], tuple[int, int]], bool]] = {
    ">=": ge, "<=": le, "==": eq, ">": gt, "<": lt,
}  # fmt: skip

_PRODUCTS = frozenset(
    [
        "p4",
        "p40",
        "p100",
        "v100",
        "t4",
        "a2",
        "a10",
        "a16",
        "a30",
        "a40",
        "a100",
        "a800",
        "l4",
        "l40",
        "l40s",
        "h100",
        "h200",
        "h800",
        "gh200",
        "b200",
    ]
)

Bound = tuple[str, int, int]  # (comparison, major, minor)


@dataclass(frozen=True)
class Wants:
    """What a job says about its devices beside their number and memory. What is left out excludes nothing.

    Attributes:
        kinds: Names of kinds; each of its devices is of one of them.
        choice: Which of them it gets: :data:`LISTED`, the first in this order that has room, or :data:`ENDS_FIRST`, the
            one on which it is expected to have ended first.
        without: Names of kinds that it must not get.
        capability: Bounds of the compute capability, all of which hold.
        nvlink: Whether those of its devices that are on one node must be connected over NVLink.
    """

    kinds: tuple[str, ...] = ()
    choice: str = LISTED
    without: tuple[str, ...] = ()
    capability: tuple[Bound, ...] = ()
    nvlink: bool = False

    def accepts(self, device: Device) -> bool:
        """Whether a device is one of those that the job wants, whoever is on it."""
        if self.kinds and not any(fits(name, device.kind) for name in self.kinds):
            return False
        if self.without and any(words(name) <= words(device.kind) for name in self.without):
            return False
        if not self.capability:
            return True
        has = device.capability
        return has is not None and all(_COMPARE[how](has, (major, minor)) for how, major, minor in self.capability)

    def rank(self, kind: str) -> int:
        """Which of its kinds a device's is, counted from 0; that of all if it names none."""
        return next((at for at, name in enumerate(self.kinds) if fits(name, kind)), 0)


@lru_cache(maxsize=4096)
def words(name: str) -> frozenset[str]:
    """The words of a kind's name: in small letters, without punctuation; ``40GiB`` and ``40 GB`` are the same."""
    joined = re.sub(r"(\d)\s+(gi?b)\b", r"\1\2", name.lower())
    parts = re.split(r"[^a-z0-9.]+", joined)
    return frozenset(_SIZE.sub(r"\1gb", part) if _SIZE.fullmatch(part) else part for part in parts if part.strip("."))


@lru_cache(maxsize=4096)
def fits(wanted: str, kind: str) -> bool:
    """Whether a wanted name fits a device's; see the module."""
    asked, has = words(wanted), words(kind)
    if not asked or not asked <= has:
        return False
    return "mig" not in has or any(_PROFILE.fullmatch(word) for word in asked)


def kinds_of(devices: Iterable[Device]) -> Counter[str]:
    """How many devices there are of each kind."""
    return Counter(device.kind for device in devices)


def why_unwanted(wants: Wants, devices: Sequence[Device]) -> str:
    """Why none of some devices is wanted: names the field, the value, what there is, and the remedy."""
    there = kinds_of(devices)
    listed = ", ".join(f"{count} x {kind}" for kind, count in sorted(there.items()))
    has = f"this pool has {listed}"
    named = wants.kinds and not any(fits(name, kind) for name in wants.kinds for kind in there)
    if named:
        said = f"gpu_kind={list(wants.kinds)!r}" if len(wants.kinds) > 1 else f"gpu_kind={wants.kinds[0]!r}"
        close = suggestion(wants.kinds, there)
        if close:
            return f"{said} is no kind of this pool, which has {listed}: did you mean {close!r}?"
        return f"{said} is no kind of this pool, which has {listed}: ask for one of these, or leave gpu_kind out"
    if wants.capability and not any(Wants(capability=wants.capability).accepts(one) for one in devices):
        bound = ",".join(f"{how}{major}.{minor}" for how, major, minor in wants.capability)
        told = sorted({one.capability for one in devices if one.capability is not None})
        highest = f", at most {told[-1][0]}.{told[-1][1]}" if told else ", and none says its compute capability"
        return f"compute_capability={bound!r} is met by no device: {has}{highest}; ask for less, or leave it out"
    asked = [f"gpu_kind={list(wants.kinds)!r}"] if wants.kinds else []
    asked += [f"exclude_gpu_kind={list(wants.without)!r}"] if wants.without else []
    asked += ["compute_capability"] if wants.capability else []
    return f"{' with '.join(asked)} leaves no device: {has}; ask for less"


def suggestion(wanted: Iterable[str], kinds: Collection[str]) -> str:
    """The word of some kind's name that a wanted name probably means; empty if nothing is like it.

    Whoever names a product that exists has not mistyped another one.
    """
    known = sorted({word for kind in kinds for word in words(kind)} - {"nvidia", "virtual"})
    for name in wanted:
        for word in sorted(words(name) - _PRODUCTS):
            close = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
            if close and close[0] != word:
                return close[0].upper()
    return ""


def linked(devices: Sequence[Device]) -> list[list[Device]]:
    """The devices in groups that are connected over NVLink among themselves, the smallest group first.

    In each group every prefix is connected, so that the first so many of it can be taken.
    """
    left = {device.id: device for device in devices}
    order = list(left)
    groups = []
    for first in order:
        if first not in left:
            continue
        group = [left.pop(first)]
        for member in group:
            near = [id_ for id_ in order if id_ in left and (id_ in member.links or member.id in left[id_].links)]
            group += [left.pop(id_) for id_ in near]
        groups.append(group)
    return sorted(groups, key=len)
