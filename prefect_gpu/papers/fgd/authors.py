"""The two policies of FGD's authors that ours is compared with, as they score: BestFit, and FGD itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from prefect_gpu.papers.fgd.scored import Scored, Scores
from prefect_gpu.papers.fgd.tables import MOST_DEVICES, WHOLE_MILLI, Shape
from prefect_gpu.papers.fgd.world import Cluster, Truth, Whole

_MOST_CPU = 128_000
_MOST_MILLI = MOST_DEVICES * WHOLE_MILLI
_TYPICAL = 0.95
"""Part of all pods that the typical ones make up."""


class BestFit(Scored):
    """The node on which the least is left over, of cores and of devices."""

    def score(self, shape: Shape, cluster: Cluster, nodes: Whole) -> tuple[Scores, Whole]:
        """See :class:`.Scored`."""
        cpu = (cluster.cpu[nodes] - shape.cpu_milli) / _MOST_CPU
        gpu = (cluster.milli[nodes].sum(axis=1) - shape.total_milli) / _MOST_MILLI
        return np.trunc(100 * (1 - cpu / 2 - gpu / 2)), np.full(len(nodes), -1)


class Fgd(Scored):
    """Fragmentation gradient descent: the node and the device where the least becomes useless to typical pods.

    Args:
        pods: What is expected to arrive, one by one.
    """

    def __init__(self, pods: Iterable[Shape]) -> None:
        super().__init__()
        counts = Counter((pod.cpu_milli, pod.milli, pod.gpus, pod.spec) for pod in pods)
        ranked = sorted(((count, *pod) for pod, count in counts.items()), reverse=True)
        total, typical = sum(counts.values()), []
        covered = 0
        for row in ranked:
            if covered >= _TYPICAL * total:
                break
            covered += row[0]
            typical.append(row)
        self._weight = np.array([row[0] / total / (covered / total) for row in typical])
        self._cpu = np.array([row[1] for row in typical])
        self._gpus = np.array([row[3] for row in typical])
        self._specs = [row[4] for row in typical]
        sizes = sorted({row[2] for row in typical})
        self._sizes = np.array(sizes)
        self._size = np.array([sizes.index(row[2]) for row in typical])

    def score(self, shape: Shape, cluster: Cluster, nodes: Whole) -> tuple[Scores, Whole]:
        """See :class:`.Scored`."""
        milli = cluster.milli[nodes]
        suits = np.stack([cluster.suits(spec)[nodes] for spec in self._specs], axis=1)
        cpu = cluster.cpu[nodes]
        before = self._fragments(cpu, milli, suits)
        if not 0 < shape.milli < WHOLE_MILLI:
            after = milli.copy()
            if shape.gpus:
                whole = milli == WHOLE_MILLI
                after[whole & (whole.cumsum(axis=1) <= shape.gpus)] = 0
            found = self._fragments(cpu - shape.cpu_milli, after, suits)
            return _gain(before, found), np.full(len(nodes), -1)
        rows, devices = np.nonzero(milli >= shape.milli)
        after = milli[rows]
        after[np.arange(len(rows)), devices] -= shape.milli
        each = np.full(milli.shape, -1.0)
        each[rows, devices] = _gain(before[rows], self._fragments(cpu[rows] - shape.cpu_milli, after, suits[rows]))
        best = each.argmax(axis=1)
        return each[np.arange(len(nodes)), best], best

    def _fragments(self, cpu: Whole, milli: Whole, suits: Truth) -> Scores:
        """Thousandths on each of some nodes that a typical pod could not use, in the mean.

        They are added up by the reason why, and then together, as the authors do it: where two nodes are equal but for
        rounding, rounding decides.
        """
        enough = milli[:, :, None] >= self._sizes
        count = enough.sum(axis=1)[:, self._size]
        total = milli.sum(axis=1)
        small = (milli[:, :, None] * ~enough).sum(axis=1)[:, self._size]
        room, cores, wants = count >= self._gpus, cpu[:, None] >= self._cpu, self._gpus > 0
        here = suits & wants
        amount = np.where(here & room & cores, small, total[:, None]) * self._weight
        reasons = (
            here & ~room & ~cores,
            here & cores,
            here & room & ~cores,
            ~wants & cores,
            ~wants & ~cores,
            wants & ~suits,
        )
        return np.sum([(amount * reason).cumsum(axis=1)[:, -1] for reason in reasons], axis=0)


def _gain(before: Scores, after: Scores) -> Scores:
    found: Scores = np.trunc(1 / (1 + np.exp(-((before - after) / 1000))) * 100)
    return found
