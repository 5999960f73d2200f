"""Profiles: named compositions of policies. Adding one is an entry in the table below."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from prefect_gpu.scheduling.policies.allocation import Allocation, Backfill, Preemptive
from prefect_gpu.scheduling.policies.order import Drf, Fifo, Las, Order, Sjf, Srsf, Srtf
from prefect_gpu.scheduling.policies.placement import BestFit, PlacementPolicy
from prefect_gpu.scheduling.policies.reaction import Reaction
from prefect_gpu.scheduling.policies.sharing import DeclaredMemory, NoSharing, Sharing


@dataclass(frozen=True)
class Profile:
    """One way to schedule.

    Attributes:
        order: Which waiting job is looked at first?
        placement: Where does a job go?
        sharing: May a job share a device with those on it?
        allocation: Who runs now, and who makes room?
        reactions: What happens to running jobs in between?
        patience_s: A due job that has waited this long is no longer overtaken: devices are kept for it. Without this,
            a stream of small runs would starve a large one for ever.
    """

    name: str
    order: Order = field(default_factory=Fifo)
    placement: PlacementPolicy = field(default_factory=BestFit)
    sharing: Sharing = field(default_factory=DeclaredMemory)
    allocation: Allocation = field(default_factory=Backfill)
    reactions: tuple[Reaction, ...] = ()
    patience_s: float = 300.0


PROFILES: dict[str, Callable[[], Profile]] = {
    "fifo": lambda: Profile("fifo"),
    "sjf": lambda: Profile("sjf", order=Sjf()),
    "easy": lambda: Profile("easy", allocation=Backfill(reserve_first=True), patience_s=math.inf),
    "drf": lambda: Profile("drf", order=Drf()),
    "srtf": lambda: Profile("srtf", Srtf(), sharing=NoSharing(), allocation=Preemptive(), patience_s=math.inf),
    "srsf": lambda: Profile("srsf", Srsf(), sharing=NoSharing(), allocation=Preemptive(), patience_s=math.inf),
    "las": lambda: Profile("las", Las(), sharing=NoSharing(), allocation=Preemptive(), patience_s=math.inf),
}


def get_profile(name: str) -> Profile:
    """A fresh profile of that name.

    Raises:
        ValueError: There is none; the message lists those there are.
    """
    try:
        return PROFILES[name]()
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise ValueError(f"profile={name!r} is not known: choose one of {known}.") from None
