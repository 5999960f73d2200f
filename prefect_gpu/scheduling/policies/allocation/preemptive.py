"""Make room for whoever comes first, in the way that the outside world allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.abilities import Preemption
from prefect_gpu.scheduling.policies.allocation.backfill import Backfill
from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.displace import Displace
from prefect_gpu.scheduling.policies.allocation.replan import Replan

if TYPE_CHECKING:
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk


class Preemptive(Allocation):
    """:class:`Replan` where moving is free, :class:`Displace` where it costs, :class:`Backfill` if nobody stops."""

    ranks_running = True

    def __init__(self) -> None:
        self._replan, self._displace, self._backfill = Replan(), Displace(), Backfill()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        for one in (self._replan, self._displace, self._backfill):
            one.bind(state)

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        if desk.abilities.preemption is Preemption.NONE:
            self._backfill.allocate(desk)
        elif desk.abilities.free_moves:
            self._replan.allocate(desk)
        else:
            self._displace.allocate(desk)
