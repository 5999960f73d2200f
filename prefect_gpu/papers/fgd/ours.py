"""Our policy in FGD's world: a pod goes where the rest of the nodes stays worth the most to pods that are expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from prefect_gpu.papers.fgd.scored import Scored, Scores
from prefect_gpu.papers.fgd.tables import Shape
from prefect_gpu.papers.fgd.world import Cluster, Whole
from prefect_gpu.scheduling.placement.kernels.fragments import Ask, Fragments, Rest

LEARNS_FROM = 400
"""Pods from which the types are learned, where nobody says what is expected."""
_LEARNS_AT = (25, 50, 100, 200, LEARNS_FROM)


class Expecting(Scored):
    """Scores by :class:`~prefect_gpu.scheduling.placement.kernels.fragments.Fragments`.

    Args:
        pods: What is expected to arrive, one by one; None: as the first :data:`LEARNS_FROM` that come.
    """

    def __init__(self, pods: Iterable[Shape] | None = None) -> None:
        super().__init__()
        self._expected = None if pods is None else Counter(map(_ask, pods))
        self._learned: Counter[Ask] = Counter()
        self._arrived = 0
        self._fragments: Fragments | None = None

    def arrives(self, shape: Shape, cluster: Cluster) -> None:
        """See :class:`~prefect_gpu.papers.fgd.world.Policy`."""
        self._arrived += 1
        if self._expected is None and self._arrived <= LEARNS_FROM:
            self._learned[_ask(shape)] += 1
        if self._arrived in ((1,) if self._expected is not None else _LEARNS_AT):
            devices: Counter[str] = Counter()
            for machine in cluster.machines:
                devices[machine.model] += machine.gpus
            self._fragments = Fragments(self._learned if self._expected is None else self._expected, devices)
            self.forget()

    def score(self, shape: Shape, cluster: Cluster, nodes: Whole) -> tuple[Scores, Whole]:
        """See :class:`.Scored`; before anything is known, the fullest node is the best."""
        fragments = self._fragments
        if fragments is None:
            return -cluster.milli[nodes].sum(axis=1).astype(float), np.full(len(nodes), -1)
        ask, losses, devices = _ask(shape), list[float](), list[int]()
        rows = zip(
            nodes.tolist(),
            cluster.cpu[nodes].tolist(),
            cluster.memory[nodes].tolist(),
            cluster.milli[nodes].tolist(),
            strict=True,
        )
        for node, cpu, memory, row in rows:
            machine = cluster.machines[node]
            milli = row[: machine.gpus]
            loss, place = fragments.loss(Rest(machine.model, cpu, memory, tuple(sorted(milli))), ask)
            losses.append(-loss)
            devices.append(milli.index(sorted(milli)[place]) if place >= 0 else -1)
        return np.array(losses), np.array(devices, dtype=np.int64)


def _ask(shape: Shape) -> Ask:
    return Ask(shape.cpu_milli, shape.memory_mib, shape.milli, shape.gpus, shape.models)
