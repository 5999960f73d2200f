"""Small clusters and random ones, for the tests of placing."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from prefect_gpu.papers.baselines.choosers import Even, FirstFit, KubernetesDefault, Pack, Random, StaticSlots
from prefect_gpu.papers.baselines.hived import HiveD
from prefect_gpu.scheduling.placement.kernels.best_fit import AnchoredBestFit, GangBestFit
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.genetic import Genetic
from prefect_gpu.scheduling.placement.kernels.placer import Placer
from prefect_gpu.scheduling.placement.kernels.topology import Topology

PLACERS: dict[str, Placer] = {
    "best fit": GangBestFit(),
    "best fit by fullness only": GangBestFit(network_weight=0.0),
    "best fit by network only": GangBestFit(network_weight=1.0),
    "anchored best fit": AnchoredBestFit(),
    "genetic": Genetic(population=6, generations=3),
    "random": Random(),
    "even": Even(),
    "first fit": FirstFit(),
    "pack": Pack(),
    "static slots of 2": StaticSlots(slot_gpus=2),
    "kubernetes": KubernetesDefault(),
    "hived": HiveD(),
}


def cluster(racks: str, gpus: int, free: list[int] | None = None) -> tuple[Topology, Free]:
    """Nodes of so many GPUs each, their racks and domains as a drawing: ``"aab|cc"`` is domain 0 with racks a and b.

    Args:
        free: Free GPUs of each node; all of them if not given.
    """
    domains = [number for number, domain in enumerate(racks.split("|")) for _ in domain]
    names = racks.replace("|", "")
    topology = Topology(domains, [ord(name) for name in names], [gpus] * len(names))
    return topology, Free(topology.gpus_total if free is None else free)


def workers(count: int, gpus: int = 1) -> Gang:
    """A gang without servers."""
    return tuple(Container(gpus=gpus) for _ in range(count))


def with_server(count: int, gpus: int = 1) -> Gang:
    """One parameter server without GPUs, and workers."""
    return (Container(role="ps"), *workers(count, gpus))


containers = st.builds(
    Container,
    gpus=st.integers(0, 4),
    cpus=st.integers(0, 4),
    role=st.sampled_from(["ps", "worker"]),
)
gangs = st.lists(containers, min_size=1, max_size=6).map(tuple)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Topology, Free]:
    """Up to ten nodes of up to 8 GPUs, some in use, in up to two domains of up to three racks."""
    count = draw(st.integers(1, 10))

    def per_node(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    topology = Topology(per_node(0, 1), per_node(0, 2), per_node(0, 8), per_node(0, 12))
    shares = np.array(per_node(0, 4))
    return topology, Free(topology.gpus_total * shares // 4, topology.cpus_total * shares // 4)


def check(gang: Gang, plan: Plan, free: Free, topology: Topology) -> None:
    """Fail unless a plan is whole, fits, and stays in one domain."""
    assert len(plan) == len(gang)
    free.copy().take(gang, plan)  # raises if it does not fit
    assert len({int(topology.domains[node]) for node in plan}) == 1
