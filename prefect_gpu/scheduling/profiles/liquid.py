"""Liquid (Gu et al., TPDS 2022): network-aware placement, sharing, pre-scheduling; and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable

from prefect_gpu.scheduling.policies.allocation.batch import BatchWindow
from prefect_gpu.scheduling.policies.placement import (
    PlacementPolicy,
    even,
    first_fit,
    hived,
    kubernetes_default,
    pack,
    random_nodes,
    static_slots,
)
from prefect_gpu.scheduling.policies.sharing import EstimatedUse, NoSharing
from prefect_gpu.scheduling.policies.successor import Successor
from prefect_gpu.scheduling.profiles.profile import Profile


def _immediate() -> Profile:
    return Profile("liquid-immediate", sharing=EstimatedUse(), reactions=(Successor(),))


def _batch() -> Profile:
    return Profile("liquid-batch", sharing=EstimatedUse(), allocation=BatchWindow(), reactions=(Successor(),))


def _by(name: str, placement: Callable[[], PlacementPolicy]) -> Callable[[], Profile]:
    return lambda: Profile(name, placement=placement(), sharing=NoSharing())


PROFILES: dict[str, Callable[[], Profile]] = {
    "liquid-immediate": _immediate,
    "liquid-batch": _batch,
    "random": _by("random", random_nodes),
    "even": _by("even", even),
    "kubernetes-default": _by("kubernetes-default", kubernetes_default),
    "hived": _by("hived", hived),
    "static-slots": _by("static-slots", static_slots),
    "first-fit": _by("first-fit", first_fit),
    "pack": _by("pack", pack),
}
