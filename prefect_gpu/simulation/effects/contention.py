"""Spread jobs that share nodes hold each other up on the network, by how sensitive each is to the other (DeepShare)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.interference.sensitivity import Key, SensitivityTable, placed_key
from prefect_gpu.scheduling.interference.spreading import Spreads
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Contention(Physics):
    """A job on several nodes keeps the part of its speed that the worst of those beside it leaves it (Ryu & Eo §III).

    Beside it are those that train on one of its nodes and are on several themselves. A job on one node sends nothing
    over the network: it disturbs nobody and nobody disturbs it.

    Args:
        table: The truth about each pair; no policy may be given the same object, as policies teach theirs.
        speeds: Speeds alone by how jobs are spread, where that matters; a job's seconds of service are counted on the
            fewest nodes that were measured.
    """

    def __init__(self, table: SensitivityTable, speeds: Spreads | None = None) -> None:
        self._table = table
        self._speeds = speeds or Spreads()

    def speed(self, run: Run, world: World) -> float:
        """Seconds of service per second."""
        own = _key(run)
        if own is None:
            return 1.0
        beside = (
            other for one in self._spread_beside(run, world) if one.status is Status.TRAINING and (other := _key(one))
        )
        return self._table.among(own, beside) / self._speeds.stretch(own)

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """The spread jobs on the nodes of a spread job."""
        return () if _key(run) is None else self._spread_beside(run, world)

    def _spread_beside(self, run: Run, world: World) -> list[Run]:
        nodes = run.placement.nodes if run.placement else ()
        found = {name: other for node in nodes for name, other in world.on_node[node].items()}
        return [other for other in found.values() if other is not run and _key(other) is not None]


def _key(run: Run) -> Key | None:
    """What contention is known for; None on one node."""
    placement = run.placement
    if placement is None or not placement.others:
        return None
    key = placed_key(run.model.request, placement)._replace(model=run.model.kind)
    return key if key.nodes > 1 else None
