"""What a profile is: one policy for each question."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.order.orders import Fifo, Order
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import BestFit
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory, Sharing
from prefect_gpu.scheduling.state.learned import Learned


@dataclass(frozen=True)
class Profile:
    """One way to schedule.

    Attributes:
        order: Which waiting job is looked at first?
        placement: Where does a job go?
        sharing: May a job share a device with those on it?
        allocation: Who runs now, and who makes room? The actions act one after the other.
        reactions: What happens to running jobs in between?
        patience_s: A due job that has waited this long is no longer overtaken: devices are kept for it. Without this,
            a stream of small runs would starve a large one for ever. It stops nobody: whoever may be stopped for a job
            is stopped as soon as that comes first in the order.
        most_late: With it, a job is patient for longer, and then late: once it has been there for so many times as long
            as it would take with its share of the devices alone, each moment an equal part of them (finish-time
            fairness, Themis; Shockwave). 0: patience alone counts.
        learned: What is known before anything has run; the reactions add to it.
        heeds_shares: Whether it knows what is promised to owners (``Quotas.shares``).
    """

    name: str
    order: Order = field(default_factory=Fifo)
    placement: PlacementPolicy = field(default_factory=BestFit)
    sharing: Sharing = field(default_factory=DeclaredMemory)
    allocation: tuple[Action, ...] = field(default_factory=lambda: (Backfill(),))
    reactions: tuple[Reaction, ...] = ()
    patience_s: float = 300.0
    most_late: float = 0.0
    learned: Learned = field(default_factory=Learned)
    heeds_shares: bool = False

    def __post_init__(self) -> None:
        """Refuse what would fail later, with an event that has nothing to do with it."""
        for name, kind in (("order", Order), ("placement", PlacementPolicy), ("sharing", Sharing)):
            if not isinstance(value := getattr(self, name), kind):
                raise TypeError(f"{name}={value!r} is no {kind.__name__}: give an object of such a class")
        for name, one in (("allocation", Action), ("reactions", Reaction)):
            value = getattr(self, name)
            if not (isinstance(value, tuple) and all(isinstance(part, one) for part in value)):
                raise TypeError(
                    f"{name}={value!r} is no tuple of {one.__name__} objects: give one, such as (My{one.__name__}(),)"
                )
        for name in ("patience_s", "most_late"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{name}={value!r} is no number from 0 on: give one, such as 300.0")

    @property
    def policies(self) -> tuple[Order, PlacementPolicy, Sharing]:
        """What a decision asks."""
        return self.order, self.placement, self.sharing
