"""The default scoring of Kubernetes' scheduler: least allocated plus balanced allocation."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from prefect_gpu.scheduling.placement.kernels.base import Greedy
from prefect_gpu.scheduling.placement.kernels.containers import Container, Floats, Free, Ints
from prefect_gpu.scheduling.placement.kernels.topology import Topology

MAX_SCORE = 100

# What kube-scheduler assumes a pod without requests uses, when it scores (not when it filters).
ASSUMED_CORES = 0.1
ASSUMED_MEMORY_BYTES = 200 * 1024**2


@dataclass(frozen=True)
class KubernetesDefault(Greedy):
    """The node with the highest sum of two scores from 0 to 100, each cut to a whole number, as kube-scheduler has it.

    - Least allocated: the mean over the resources of 100 x (capacity - requested) / capacity, requests counted with
      the assumed minimum of a pod that states none.
    - Balanced allocation: 100 x (1 - the standard deviation of the requested shares of the resources).

    Both look at cores and memory only, with equal weights: kube-scheduler's default knows no extended resource, so a
    pod's GPUs decide whether it fits and not where it goes. A resource of which a node has none is left out, and a
    pod that asks for none of them (best effort) gets no score for balance. Three things differ: ties go to the lowest
    node number (kube-scheduler draws), a gang that does not fit whole is not started in part, and a gang stays in one
    domain.

    Attributes:
        count_gpus: Score GPUs as a third resource, as clusters with GPUs configure it.
    """

    count_gpus: bool = False

    def choose(self, container: Container, candidates: Ints, left: Free, topology: Topology, rng: random.Random) -> int:
        """See `Greedy.choose`."""
        resources = [
            (topology.cpus_total, left.cpus, container.cpus, ASSUMED_CORES),
            (topology.memory_total_bytes, left.memory_bytes, container.memory_bytes, ASSUMED_MEMORY_BYTES),
        ]
        if self.count_gpus:
            resources.append((topology.gpus_total, left.gpus, container.gpus, 0.0))
        least = np.zeros(len(candidates))
        counted = np.zeros(len(candidates))
        shares = []
        for total, free, asked, assumed in resources:
            capacity = total[candidates].astype(np.float64)
            has = capacity > 0
            used = capacity - free[candidates]
            unused = np.maximum(capacity - used - (asked or assumed), 0.0)
            least += np.floor(np.divide(unused * MAX_SCORE, capacity, out=np.zeros_like(unused), where=has))
            counted += has
            shares.append(np.divide(used + asked, capacity, out=np.full_like(used, np.nan), where=has))
        score = np.floor(least / np.maximum(counted, 1))
        if any(asked for _, _, asked, _ in resources):
            score += np.floor(MAX_SCORE * (1.0 - _deviation(np.minimum(shares, 1.0))))
        return int(candidates[score.argmax()])


def _deviation(shares: Floats) -> Floats:
    """Standard deviation over the resources, shape (resources, nodes) to (nodes,); nan entries are left out."""
    known = ~np.isnan(shares)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, shares, 0.0).sum(axis=0) / count
    deviation: Floats = np.sqrt(np.where(known, (shares - mean) ** 2, 0.0).sum(axis=0) / count)
    return deviation
