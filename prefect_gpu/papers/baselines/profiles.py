"""What papers compare with: other systems' placements, orders that traces can state, and Tiresias' queues."""

from __future__ import annotations

import math
from collections.abc import Callable

from prefect_gpu.papers.baselines.by_placer import ByPlacer
from prefect_gpu.papers.baselines.choosers import Even, FirstFit, KubernetesDefault, Pack, Random, StaticSlots
from prefect_gpu.papers.baselines.hived import HiveD
from prefect_gpu.papers.baselines.orders import Drf, Priority, Srsf
from prefect_gpu.papers.baselines.portions import Cells, Slots
from prefect_gpu.papers.baselines.strict import Strict
from prefect_gpu.papers.baselines.tiresias import TiresiasQueues
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.order.orders import Las
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing


def _by(name: str, placement: Callable[[], ByPlacer]) -> Callable[[], Profile]:
    return lambda: Profile(name, placement=placement(), sharing=NoSharing())


PROFILES: dict[str, Callable[[], Profile]] = {
    "random": _by("random", lambda: ByPlacer(Random())),
    "even": _by("even", lambda: ByPlacer(Even())),
    "kubernetes-default": _by("kubernetes-default", lambda: ByPlacer(KubernetesDefault())),
    # HiveD's cells are of GPUs: parameter servers, which have none, go by Kubernetes' own scheduler.
    "hived": _by("hived", lambda: ByPlacer(HiveD(), Cells(), servers=KubernetesDefault())),
    "static-slots": _by("static-slots", lambda: ByPlacer(StaticSlots(1), Slots(1))),
    "first-fit": _by("first-fit", lambda: ByPlacer(FirstFit())),
    "pack": _by("pack", lambda: ByPlacer(Pack())),
    "strict-fifo": lambda: Profile("strict-fifo", allocation=(Strict(),), patience_s=math.inf),
    "srsf": lambda: Profile(
        "srsf", Srsf(), sharing=NoSharing(), allocation=(Backfill(MakeRoom()),), patience_s=math.inf
    ),
    "priority": lambda: Profile("priority", Priority()),
    "drf": lambda: Profile("drf", Drf(), patience_s=math.inf),
    "tiresias": lambda: Profile(
        "tiresias", Las(), sharing=NoSharing(), allocation=(TiresiasQueues(),), patience_s=math.inf
    ),
}
