"""Profiles: named compositions of policies. Adding one is an entry in the table below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prefect_gpu.scheduling.policies.order import Fifo, Order
from prefect_gpu.scheduling.policies.placement import BestFit, PlacementPolicy
from prefect_gpu.scheduling.policies.sharing import DeclaredMemory, Sharing


@dataclass(frozen=True)
class Profile:
    """One way to schedule.

    Attributes:
        patience_s: A due job that has waited this long is no longer overtaken: the devices that it could use are
            kept for it. Without this, a stream of small runs would starve a large one for ever.
    """

    name: str
    order: Order = field(default_factory=Fifo)
    placement: PlacementPolicy = field(default_factory=BestFit)
    sharing: Sharing = field(default_factory=DeclaredMemory)
    patience_s: float = 300.0


PROFILES: dict[str, Callable[[], Profile]] = {
    "fifo": lambda: Profile("fifo"),
}


def get_profile(name: str) -> Profile:
    """The profile of that name.

    Raises:
        ValueError: There is none; the message lists those there are.
    """
    try:
        return PROFILES[name]()
    except KeyError:
        known = ", ".join(sorted(PROFILES))
        raise ValueError(f"profile={name!r} is not known: choose one of {known}.") from None
