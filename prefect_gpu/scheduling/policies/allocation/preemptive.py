"""Make room for whoever comes first, in the way that the outside world allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.policies.allocation.base import Allocation
from prefect_gpu.scheduling.policies.allocation.displace import Displace
from prefect_gpu.scheduling.policies.allocation.replan import Replan

if TYPE_CHECKING:
    from prefect_gpu.scheduling.state import State
    from prefect_gpu.scheduling.verbs import Desk


class Preemptive(Allocation):
    """:class:`Replan` where moving is free, else :class:`Displace`, which disturbs only who may be stopped."""

    ranks_running = True

    def __init__(self) -> None:
        self._replan, self._displace = Replan(), Displace()

    def bind(self, state: State) -> None:
        """Called once, before anything else."""
        super().bind(state)
        self._replan.bind(state)
        self._displace.bind(state)

    def allocate(self, desk: Desk) -> None:
        """See the class."""
        (self._replan if desk.abilities.free_moves else self._displace).allocate(desk)
