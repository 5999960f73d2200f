"""The node that is lost on the way: which one, when, and when it comes back."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from prefect_gpu.demo.board import Seen
from prefect_gpu.lab.docker_nodes import Lab, LabNode
from prefect_gpu.reporting.spans import Outage

Places = tuple[tuple[str, tuple[str, ...]], ...]
"""The nodes of one try of a run, each with the devices that it has there."""

_AWAY_S = 15.0  # at least
_LATEST = 25.0  # per cent of the gang's steps: then others on its node may begin anew


class LostNode:
    """Stops a node as if its power were cut, once there is something to lose, and starts it again.

    That is a node with a part of the gang, once the gang has a checkpoint, and best when all that is there has one. It
    is never the first node, which is the Swarm's manager.

    Attributes:
        outage: When it was away; None before.
        lost: The runs that were on it.
        begun: Those of them that had saved a checkpoint. Others may not have begun, and are no second try elsewhere.
    """

    def __init__(self, lab: Lab, gang: str) -> None:
        self._lab = lab
        self._gang = gang
        self._node: LabNode | None = None
        self.outage: Outage | None = None
        self.lost: frozenset[str] = frozenset()
        self.begun: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The node's name; empty before."""
        return self._node.name if self._node is not None else ""

    @property
    def is_away(self) -> bool:
        """Whether it is away now."""
        return self.outage is not None and self.outage.end is None

    def look(self, runs: Collection[Seen], places: Mapping[str, Places], saved: Collection[str]) -> str:
        """Do what is due.

        Args:
            runs: All runs.
            places: Where those are that have been launched.
            saved: Those that have a checkpoint.

        Returns:
            What was done, for people; empty if it was nothing.
        """
        if self.outage is None:
            node = self._ripe(runs, places, saved)
            return self._stop(node, runs, places, saved) if node is not None else ""
        if not self.is_away or time.time() < self.outage.start + _AWAY_S:
            return ""
        train = {run.run_id for run in runs if run.final or run.phase == "training"}
        elsewhere = {run for run in train if self.name not in _nodes(places.get(run, ()))}
        return self._start() if self.lost <= elsewhere else ""

    def _ripe(self, runs: Collection[Seen], places: Mapping[str, Places], saved: Collection[str]) -> LabNode | None:
        gang = next((run for run in runs if run.run_id == self._gang), None)
        if gang is None or gang.final or self._gang not in saved:
            return None
        found: list[tuple[bool, int, LabNode]] = []
        for node in self._lab.nodes[1:]:
            here = {run for run, place in places.items() if node.name in _nodes(place)}
            if self._gang in here:
                found.append((here <= set(saved), len(here), node))
        ready, _, node = max(found, key=lambda one: one[:2], default=(False, 0, self._lab.nodes[0]))
        return node if found and (ready or gang.percent >= _LATEST) else None

    def _stop(self, node: LabNode, runs: Collection[Seen], places: Mapping[str, Places], saved: Collection[str]) -> str:
        self._node = node
        self.lost = frozenset(run for run, place in places.items() if node.name in _nodes(place))
        self.begun = self.lost.intersection(saved)
        self.outage = Outage(node.name, time.time())
        self._lab.stop_engine(node)
        names = ", ".join(sorted(run.name for run in runs if run.run_id in self.lost))
        return f"{node.name} is stopped, as if its power were cut. On it: {names}"

    def _start(self) -> str:
        assert self._node is not None and self.outage is not None
        self._lab.start_engine(self._node)
        self.outage = Outage(self.name, self.outage.start, time.time())
        return f"{self.name} is back"


def _nodes(place: Places) -> set[str]:
    return {node for node, _ in place}
