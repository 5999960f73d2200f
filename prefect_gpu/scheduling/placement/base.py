"""The question that every placement policy answers."""

from __future__ import annotations

import abc
from collections.abc import Container

from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.state import State


class PlacementPolicy(abc.ABC):
    """Chooses among the places that can hold a job."""

    def suited_to(self, abilities: Abilities) -> PlacementPolicy:
        """The policy for an outside world that can do this."""
        return self

    def why(self, placement: Placement) -> str:
        """What speaks for a place that it has just chosen, beside that there is room, in words; empty: nothing.

        Args:
            placement: The very one.
        """
        return ""

    def kind_for(self, job: Job, state: State) -> str | None:
        """The kind of device that a waiting job is to go to, for the good of all; None: any."""
        return None

    def declines(self, job: Job, state: State) -> str:
        """Why a waiting job is given none of the devices that are free and would do, in words; empty: it would be."""
        return ""

    @abc.abstractmethod
    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """The place for a job, or None if nothing can hold it now. Must not change the state.

        Args:
            kept: Ids of devices that are kept for another job.
        """
