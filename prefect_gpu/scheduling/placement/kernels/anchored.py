"""Best fit from several first nodes: ours, for what Algorithm 1 cannot see when it places the first container."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from prefect_gpu.scheduling.placement.kernels.base import roomy
from prefect_gpu.scheduling.placement.kernels.best_fit import BestFit
from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Mask, Plan
from prefect_gpu.scheduling.placement.kernels.topology import Topology

TIGHT_RACKS = 2


@dataclass(frozen=True)
class AnchoredBestFit(BestFit):
    """Best fit, from its own first node and from a few others; the plan with the smallest score is kept.

    The first container of a gang has no partner to be near to, so Algorithm 1 puts it on the fullest node, and the
    rest of the gang has to leave that node. Here the first container is also tried on the fullest node that holds the
    whole gang, on the freest nodes of the racks that hold it with the least to spare, and on the freest node of all.
    Never worse than `BestFit` by the score, and a few times slower.
    """

    def place(self, gang: Gang, free: Free, topology: Topology, rng: random.Random | None = None) -> Plan | None:
        """See the class and `Placer.place`."""
        found = super().place(gang, free, topology, rng)
        plans = [] if found is None else [found]
        allowed = roomy(gang, free, topology)
        for anchor in self._anchors(gang, free, topology, allowed):
            plan, _ = self.fill(gang, free.copy(), topology, allowed, anchor)
            if plan is not None:
                plans.append(plan)
        return min(plans, key=lambda plan: topology.score(gang, plan, free, self.network_weight), default=None)

    @staticmethod
    def _anchors(gang: Gang, free: Free, topology: Topology, allowed: Mask) -> list[int]:
        """The first nodes to try, each once."""
        if len(gang) == 1 or not allowed.any():
            return []
        gpus = sum(container.gpus for container in gang)
        open_gpus = np.where(allowed, free.gpus, -1)
        anchors = [int(open_gpus.argmax())]
        whole = np.flatnonzero(open_gpus >= gpus)
        if len(whole):
            anchors.append(int(whole[free.gpus[whole].argmin()]))
        room = np.bincount(topology.racks, weights=np.where(allowed, free.gpus, 0))
        spare = np.where(room >= gpus, room, np.inf)
        for rack in np.argsort(spare, kind="stable")[:TIGHT_RACKS]:
            if np.isfinite(spare[rack]):
                anchors.append(int(np.where(topology.racks == rack, open_gpus, -1).argmax()))
        return list(dict.fromkeys(anchors))
