"""A policy that gives each node a score, and remembers it until the node changes."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from prefect_gpu.papers.fgd.tables import Shape
from prefect_gpu.papers.fgd.world import Cluster, Whole

Scores = npt.NDArray[np.float64]


@dataclass
class _Known:
    scores: Scores
    devices: Whole
    seen: int = 0


class Scored(abc.ABC):
    """The node of the largest score gets the pod; among equals, the first.

    Nobody leaves: a node that could not take a pod of a shape never will, and needs no score.
    """

    def __init__(self) -> None:
        self._known: dict[Shape, _Known] = {}

    def forget(self) -> None:
        """All scores are void."""
        self._known.clear()

    def arrives(self, shape: Shape, cluster: Cluster) -> None:  # noqa: B027 - only who learns overrides it
        """See :class:`~prefect_gpu.papers.fgd.world.Policy`."""

    def place(self, shape: Shape, cluster: Cluster, fitting: Whole) -> tuple[int, tuple[int, ...]]:
        """See :class:`~prefect_gpu.papers.fgd.world.Policy`."""
        known = self._known.get(shape)
        if known is None:
            count = len(cluster.machines)
            known = self._known[shape] = _Known(np.zeros(count), np.zeros(count, dtype=np.int64))
            stale = fitting
        else:
            changed = {*cluster.changes[known.seen :]}
            stale = np.array([node for node in fitting.tolist() if node in changed], dtype=np.int64)
        known.seen = len(cluster.changes)
        if len(stale):
            known.scores[stale], known.devices[stale] = self.score(shape, cluster, stale)
        best = int(fitting[np.argmax(known.scores[fitting])])
        device = int(known.devices[best])
        return best, (device,) if device >= 0 else cluster.devices(best, shape)

    @abc.abstractmethod
    def score(self, shape: Shape, cluster: Cluster, nodes: Whole) -> tuple[Scores, Whole]:
        """Scores of nodes that could take the pod, and for each the device, or -1 for those of ``Cluster.devices``."""
