"""Gangs on links that are measured: each node's, and those between racks (Liquid, §5.1 and eq. 2).

Where :class:`~prefect_gpu.simulation.effects.network.Network` needs one share per program and two factors, this needs
what a real cluster can be asked: how long an iteration takes alone, by how far the gang is spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run

_ROUNDS = 8  # of the fixed point; more change the speeds of eight gangs by less than 1 %


@dataclass(frozen=True)
class Iteration:
    """Seconds of one iteration of a gang that is alone.

    Attributes:
        node_s: All instances on one node.
        rack_s: On several nodes of one rack.
        across_s: In several racks.
    """

    node_s: float
    rack_s: float
    across_s: float


class SharedLinks(Physics):
    """Gangs that use the same link at the same time each get an equal part of it.

    A gang uses the links of its nodes if it has several, and the uplinks of its racks if it has several; what an
    iteration takes longer there than on one node is the time for which it uses the link. While others use it too, that
    time is stretched: by one for each of them, weighted with the part of *its* iteration for which that one uses the
    link. The parts depend on each other, so a fixed point is sought. Communication is not taken to overlap with
    computing.

    Args:
        iterations: By the kind of the job (``JobModel.kind``) and its number of workers. Gangs of other kinds neither
            use links nor are slowed down.
    """

    def __init__(self, iterations: Mapping[tuple[str, int], Iteration]) -> None:
        self._iterations = dict(iterations)

    def speed(self, run: Run, world: World) -> float:
        """Iterations per second, 1 being those of the gang alone on one node."""
        own = self._iteration(run)
        if own is None or run.placement is None:
            return 1.0
        gangs = [(run, own)] + [
            (other, known)
            for other in world.active.values()
            if other is not run and other.status is Status.TRAINING and (known := self._iteration(other)) is not None
        ]
        uses = {gang.model.id: self._uses(gang.placement, known, world) for gang, known in gangs if gang.placement}
        took = {gang.model.id: known.node_s for gang, known in gangs}
        parts: dict[str, dict[str, float]] = {gang: {} for gang in took}
        computes = dict(took)
        for _ in range(_ROUNDS):
            stretched = {
                gang: {link: seconds * (1.0 + _others(parts, gang, link)) for link, seconds in links.items()}
                for gang, links in uses.items()
            }
            took = {gang: computes[gang] + max(stretched[gang].values(), default=0.0) for gang in uses}
            parts = {
                gang: {link: seconds / took[gang] for link, seconds in links.items()}
                for gang, links in stretched.items()
            }
        return own.node_s / took[run.model.id]

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """All gangs: a slower one leaves more of a link to others, who are on other links as well."""
        return [other for other in world.active.values() if self._iteration(other) is not None]

    def _iteration(self, run: Run) -> Iteration | None:
        return self._iterations.get((run.model.kind, run.model.request.workers))

    @staticmethod
    def _uses(placement: Placement, known: Iteration, world: World) -> dict[str, float]:
        """Seconds for which each link is used in an iteration, alone."""
        nodes = placement.nodes
        if len(nodes) == 1:
            return {}
        state = world.scheduler.state.nodes
        racks = sorted({state[node].rack for node in nodes})
        links = {f"node {node}": max(0.0, known.rack_s - known.node_s) for node in nodes}
        if len(racks) > 1:
            links |= {f"rack {rack}": max(0.0, known.across_s - known.node_s) for rack in racks}
        return links


def _others(parts: Mapping[str, Mapping[str, float]], gang: str, link: str) -> float:
    return sum(links.get(link, 0.0) for other, links in parts.items() if other != gang)
