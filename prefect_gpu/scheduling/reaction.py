"""What happens to running jobs between two allocations: reactions watch events and look after those who run."""

from __future__ import annotations

import abc

from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.state.state import State


class Reaction(abc.ABC):
    """Watches events and adjusts running jobs. One object serves one scheduler: it may remember things."""

    def bind(self, state: State) -> None:  # noqa: B027  (most remember nothing of it)
        """Called once, before anything else."""

    @abc.abstractmethod
    def react(self, event: Event, decision: Decision) -> bool:
        """See one event that changed something, after the books have changed.

        Returns:
            Whether the allocation has to look at the jobs, although the event itself does not ask for it.
        """

    def settle(self, decision: Decision) -> None:  # noqa: B027  (most have nothing to add)
        """Called once before the allocation decides, when all reactions have seen all events of the moment."""

    def after(self, decision: Decision) -> None:  # noqa: B027  (most have nothing to add)
        """Called when the allocation has decided: jobs that just started, or devices left free, can be looked after."""
