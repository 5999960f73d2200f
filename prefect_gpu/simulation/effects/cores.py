"""How the cores that a run has change its speed (CODA, §III.B and §IV.B)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Cores(Physics):
    """A training run's speed, and with it the use of its GPUs, rises linearly up to the cores it can use.

    Beyond them it sinks slightly. A CPU job is as fast as the cores that it has are part of those it asked for. A core
    that several runs are bound to is worth an equal part to each.

    Args:
        sinks_by: Part of the speed that each core too many costs; the paper only says that it is little.
        most: The most that cores too many cost together.
    """

    def __init__(self, sinks_by: float = 0.004, most: float = 0.04) -> None:
        self._sinks_by = sinks_by
        self._most = most

    def speed(self, run: Run, world: World) -> float:
        """Seconds of service per second; 1 if the run needs no certain number of cores."""
        placement, model = run.placement, run.model
        need = model.cores if model.request.total_gpus else model.request.cpus
        if placement is None or not need or not placement.cpus:
            return 1.0
        cores = min(_worth(part, run, world) for part in placement.parts)
        if cores <= need:
            return cores / need
        return 1.0 - min(self._most, self._sinks_by * (cores - need)) if model.request.total_gpus else 1.0

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """Everybody on its nodes, where runs share cores."""
        found: list[Run] = []
        for part in run.placement.parts if run.placement else ():
            others = [other for other in world.on_node[part.node].values() if other is not run]
            load = Counter(part.cpus)
            for other in others:
                load.update(_cores_on(part.node, other))
            if load and max(load.values()) > 1:
                found += others
        return found


def _worth(part: Placement, run: Run, world: World) -> float:
    """Cores of its own that the cores of one part are worth."""
    own = set(part.cpus)
    others: Counter[int] = Counter()
    for other in world.on_node[part.node].values():
        if other is not run and not own.isdisjoint(cores := _cores_on(part.node, other)):
            others.update(own.intersection(cores))
    if not others:
        return len(part.cpus)
    return sum(1.0 / (1 + others[core]) for core in part.cpus)


def _cores_on(node_id: str, run: Run) -> tuple[int, ...]:
    placement = run.placement
    if placement is None:
        return ()
    if not placement.others:
        return placement.cpus
    return tuple(core for part in placement.parts if part.node == node_id for core in part.cpus)
