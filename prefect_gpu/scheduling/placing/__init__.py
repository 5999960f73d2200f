"""Where the containers of a gang go: pure kernels on one number per node.

`Placer.place(gang, free, topology, rng)` gives a node for each container, or None. `BestFit` and `Genetic` are
Liquid's two (§5); the others are what it and the other papers compare with.
"""

from prefect_gpu.scheduling.placing.anchored import AnchoredBestFit
from prefect_gpu.scheduling.placing.base import Placer
from prefect_gpu.scheduling.placing.best_fit import BestFit
from prefect_gpu.scheduling.placing.cells import Cell, Cells
from prefect_gpu.scheduling.placing.choosers import Even, FirstFit, Pack, Random, StaticSlots
from prefect_gpu.scheduling.placing.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placing.genetic import Genetic
from prefect_gpu.scheduling.placing.hived import HiveD
from prefect_gpu.scheduling.placing.kubernetes import KubernetesDefault
from prefect_gpu.scheduling.placing.topology import Topology

__all__ = [
    "AnchoredBestFit",
    "BestFit",
    "Cell",
    "Cells",
    "Container",
    "Even",
    "FirstFit",
    "Free",
    "Gang",
    "Genetic",
    "HiveD",
    "KubernetesDefault",
    "Pack",
    "Placer",
    "Plan",
    "Random",
    "StaticSlots",
    "Topology",
]
