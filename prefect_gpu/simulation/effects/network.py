"""How the placement of a gang, and other gangs on the same links, change its speed (Liquid, §5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.simulation.physics import Physics

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.cluster import Placement
    from prefect_gpu.simulation.physics import World
    from prefect_gpu.simulation.run import Run


class Network(Physics):
    """Synchronisation takes the longer, the more of it crosses the busiest link that it has to cross.

    An iteration alone on one node is 1 long, ``network_share`` of which is communication. Each pair of a parameter
    server and a worker is a *flow* (without servers: each instance and the next, in a ring); a flow between two nodes
    crosses both their links. If all of a gang's flows cross one link that is otherwise idle, its communication takes
    ``remote`` times as long; half of them, half that. Flows of other gangs on the link count for the part of the time
    that they are there.

    Args:
        remote: See above; at least 1. How much slower the link of a node is than the memory of one.
        across: Times by which a flow between two racks counts; more than 1 if the network between racks is narrow.
    """

    def __init__(self, remote: float = 4.0, across: float = 1.0) -> None:
        if remote < 1 or across < 1:
            raise ValueError(f"remote={remote}, across={across}: give 1 or more, the network is no faster than a node")
        self._remote = remote
        self._across = across

    def speed(self, run: Run, world: World) -> float:
        """Seconds of service per second; 1 for a run on one node."""
        share, placement = run.model.network_share, run.placement
        if not share or placement is None or not placement.others:
            return 1.0
        flows, count = self._flows(placement, world)
        if not flows:
            return 1.0
        busiest = max(own + self._others(run, node, world) * count for node, own in flows.items())
        return 1.0 / (1.0 - share + share * max(1.0, self._remote * busiest / count))

    def concerned(self, run: Run, world: World) -> Iterable[Run]:
        """The other gangs on the links of a gang."""
        placement = run.placement
        if placement is None or not placement.others or not run.model.network_share:
            return ()
        found = {name: other for node in placement.nodes for name, other in world.on_node[node].items()}
        return [other for other in found.values() if other.placement is not None and other.placement.others]

    def _others(self, run: Run, node: str, world: World) -> float:
        """How much of a link the other gangs need, in parts of the time; each as if it were alone."""
        total = 0.0
        for other in world.on_node[node].values():
            share, placement = other.model.network_share, other.placement
            if other is run or not share or other.status is not Status.TRAINING or placement is None:
                continue
            flows, count = self._flows(placement, world)
            if node in flows:
                part = flows[node] / count
                time = share * self._remote * part
                total += part * time / (1.0 - share + max(share, time))
        return total

    def _flows(self, placement: Placement, world: World) -> tuple[dict[str, float], int]:
        """Flows on the link of each node (none if all stay on their nodes), and how many flows there are."""
        parts = placement.parts
        workers = [part.node for part in parts[: len(parts) - placement.servers]]
        servers = [part.node for part in parts[len(parts) - placement.servers :]]
        if servers:
            pairs = [(server, worker) for server in servers for worker in workers]
        else:
            pairs = list(zip(workers, workers[1:] + workers[:1], strict=True))
        flows: dict[str, float] = {}
        for one, other in pairs:
            if one != other:
                weight = 1.0 if self._across == 1.0 else self._weight(one, other, world)
                for node in (one, other):
                    flows[node] = flows.get(node, 0.0) + weight
        return flows, len(pairs)

    def _weight(self, one: str, other: str, world: World) -> float:
        nodes = world.scheduler.state.nodes
        return 1.0 if nodes[one].rack == nodes[other].rack else self._across
