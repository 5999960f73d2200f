"""Baselines: what everybody compares with."""

from __future__ import annotations

import math
from collections.abc import Callable

from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.order.orders import DiscretizedLas, Las, Order, Sjf, Srtf
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.scheduling.sharing.rules import NoSharing


def _preemptive(name: str, order: Order) -> Profile:
    return Profile(name, order, sharing=NoSharing(), allocation=(Backfill(MakeRoom()),), patience_s=math.inf)


PROFILES: dict[str, Callable[[], Profile]] = {
    "fifo": lambda: Profile("fifo"),
    "easy": lambda: Profile("easy", allocation=(Backfill(reserve_first=True),), patience_s=math.inf),
    "sjf": lambda: Profile("sjf", Sjf(), patience_s=math.inf),
    "srtf": lambda: _preemptive("srtf", Srtf()),
    "las": lambda: _preemptive("las", Las()),
    "discretized-las": lambda: _preemptive("discretized-las", DiscretizedLas()),
}
