"""Where does a job go? Best fit on one node, and gangs on several by Liquid's rule or by those it is compared with."""

from prefect_gpu.scheduling.policies.placement.base import PlacementPolicy
from prefect_gpu.scheduling.policies.placement.batch import place_batch
from prefect_gpu.scheduling.policies.placement.best_fit import BestFit, whole_nodes
from prefect_gpu.scheduling.policies.placement.by_placer import (
    ByPlacer,
    even,
    first_fit,
    hived,
    kubernetes_default,
    pack,
    random_nodes,
    static_slots,
)
from prefect_gpu.scheduling.policies.placement.granting import choose_cpus, grant, granted_gang, joined

__all__ = [
    "BestFit",
    "ByPlacer",
    "PlacementPolicy",
    "choose_cpus",
    "even",
    "first_fit",
    "grant",
    "granted_gang",
    "hived",
    "joined",
    "kubernetes_default",
    "pack",
    "place_batch",
    "random_nodes",
    "static_slots",
    "whole_nodes",
]
