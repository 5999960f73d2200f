"""How fast a simulated run trains where it is, and whom that concerns."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from prefect_gpu.scheduling import Scheduler
    from prefect_gpu.simulation.run import Run


class World(Protocol):
    """Who else is there."""

    scheduler: Scheduler
    active: dict[str, Run]
    on_node: dict[str, dict[str, Run]]
    on_device: dict[str, dict[str, Run]]


class Physics(abc.ABC):
    """What slows a run down."""

    @abc.abstractmethod
    def speed(self, run: Run, world: World) -> float:
        """Seconds of service that the run gets per second, with everybody else where they are now."""

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """Other runs whose speed may change when this one starts, stops or changes."""
        return ()

    def pressure(self, node_id: str, world: World) -> dict[str, float]:
        """Part of the node's memory bandwidth that each run on it uses, 0 to 1; empty if nothing is modelled."""
        return {}


class Undisturbed(Physics):
    """Nobody disturbs anybody: each run trains at the speed of its devices' count."""

    def speed(self, run: Run, world: World) -> float:
        """See the class."""
        placement = run.placement
        return run.model.speed_on(len(placement.all_devices)) if placement and run.model.throughput else 1.0


class Slowdowns(Physics):
    """Several effects at once: their factors multiply.

    Args:
        effects: Each gives a factor between 0 and 1 for a run.
    """

    def __init__(self, *effects: Physics) -> None:
        self._effects = effects

    def speed(self, run: Run, world: World) -> float:
        """See the class."""
        speed = 1.0
        for effect in self._effects:
            speed *= effect.speed(run, world)
        return speed

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """Whoever any of the effects concerns."""
        return {other.model.id: other for effect in self._effects for other in effect.concerned(run, world)}.values()

    def pressure(self, node_id: str, world: World) -> dict[str, float]:
        """What the first of the effects that models it says."""
        return next((found for effect in self._effects if (found := effect.pressure(node_id, world))), {})
