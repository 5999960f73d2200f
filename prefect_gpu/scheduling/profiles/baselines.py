"""Baselines: what everybody compares with."""

from __future__ import annotations

import math
from collections.abc import Callable

from prefect_gpu.scheduling.policies.allocation import Backfill, Preemptive, Strict
from prefect_gpu.scheduling.policies.allocation.tiresias import TiresiasQueues
from prefect_gpu.scheduling.policies.order import DiscretizedLas, Drf, Las, Order, Priority, Sjf, Srsf, Srtf
from prefect_gpu.scheduling.policies.sharing import NoSharing
from prefect_gpu.scheduling.profiles.profile import Profile


def _preemptive(name: str, order: Order) -> Profile:
    return Profile(name, order, sharing=NoSharing(), allocation=Preemptive(), patience_s=math.inf)


PROFILES: dict[str, Callable[[], Profile]] = {
    "fifo": lambda: Profile("fifo"),
    "strict-fifo": lambda: Profile("strict-fifo", allocation=Strict(), patience_s=math.inf),
    "easy": lambda: Profile("easy", allocation=Backfill(reserve_first=True), patience_s=math.inf),
    "priority": lambda: Profile("priority", Priority()),
    "sjf": lambda: Profile("sjf", Sjf(), patience_s=math.inf),
    "drf": lambda: Profile("drf", Drf(), patience_s=math.inf),
    "srtf": lambda: _preemptive("srtf", Srtf()),
    "srsf": lambda: _preemptive("srsf", Srsf()),
    "las": lambda: _preemptive("las", Las()),
    "tiresias": lambda: Profile(
        "tiresias", Las(), sharing=NoSharing(), allocation=TiresiasQueues(), patience_s=math.inf
    ),
    "discretized-las": lambda: _preemptive("discretized-las", DiscretizedLas()),
}
