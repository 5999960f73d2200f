"""What papers compare with: other systems' placements, and Tiresias' queues."""

from __future__ import annotations

import math
from collections.abc import Callable

from prefect_gpu.papers.baselines.by_placer import (
    even,
    first_fit,
    hived,
    kubernetes_default,
    pack,
    random_nodes,
    static_slots,
)
from prefect_gpu.papers.baselines.tiresias import TiresiasQueues
from prefect_gpu.scheduling.order.orders import Las
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing


def _by(name: str, placement: Callable[[], PlacementPolicy]) -> Callable[[], Profile]:
    return lambda: Profile(name, placement=placement(), sharing=NoSharing())


PROFILES: dict[str, Callable[[], Profile]] = {
    "random": _by("random", random_nodes),
    "even": _by("even", even),
    "kubernetes-default": _by("kubernetes-default", kubernetes_default),
    "hived": _by("hived", hived),
    "static-slots": _by("static-slots", static_slots),
    "first-fit": _by("first-fit", first_fit),
    "pack": _by("pack", pack),
    "tiresias": lambda: Profile(
        "tiresias", Las(), sharing=NoSharing(), allocation=(TiresiasQueues(),), patience_s=math.inf
    ),
}
