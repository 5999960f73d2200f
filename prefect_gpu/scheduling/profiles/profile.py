"""What a profile is: one policy for each question."""

from __future__ import annotations

from dataclasses import dataclass, field

from prefect_gpu.scheduling.policies.allocation import Allocation, Backfill
from prefect_gpu.scheduling.policies.order import Fifo, Order
from prefect_gpu.scheduling.policies.placement import BestFit, PlacementPolicy
from prefect_gpu.scheduling.policies.reaction import Reaction
from prefect_gpu.scheduling.policies.sharing import DeclaredMemory, Sharing


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
            a stream of small runs would starve a large one for ever. It stops nobody: whoever may be stopped for a job
            is stopped as soon as that comes first in the order.
    """

    name: str
    order: Order = field(default_factory=Fifo)
    placement: PlacementPolicy = field(default_factory=BestFit)
    sharing: Sharing = field(default_factory=DeclaredMemory)
    allocation: Allocation = field(default_factory=Backfill)
    reactions: tuple[Reaction, ...] = ()
    patience_s: float = 300.0
