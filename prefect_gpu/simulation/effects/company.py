"""Runs that share a device: they take turns, and all lose a little by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Company(Physics):
    """Weighted processor sharing: runs that train on one device divide it by their weights.

    A run alone has all of it. Together, n runs get 1 / (1 + loss * (1 - 1/n)) of what one gets alone: caches and
    threads of several runs are in each other's way. With unequal weights w, n is (sum w)² / sum w²: a run that seldom
    has its turn disturbs the others little.

    Args:
        loss: See above; 0: sharing costs nothing.
    """

    def __init__(self, loss: float = 0.0) -> None:
        if loss < 0:
            raise ValueError(f"loss is {loss}: give 0 or more")
        self._loss = loss

    def speed(self, run: Run, world: World) -> float:
        """The smallest part that the run has of any of its devices."""
        placement = run.placement
        return (
            min((self._part(run, device, world) for device in placement.all_devices), default=1.0) if placement else 1.0
        )

    def _part(self, run: Run, device: str, world: World) -> float:
        training = [other for other in world.on_device[device].values() if other.status is Status.TRAINING]
        weights = sum(other.weight for other in training) or run.weight
        count = weights**2 / (sum(other.weight**2 for other in training) or weights**2)
        return run.weight / weights / (1.0 + self._loss * (1.0 - 1.0 / count))

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """All that are on the same devices."""
        devices = run.placement.all_devices if run.placement else ()
        return {name: other for device in devices for name, other in world.on_device[device].items()}.values()
