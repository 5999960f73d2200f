"""The placers that the papers compare with, and what every placer promises."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.baselines.choosers import Even, FirstFit, KubernetesDefault, Pack, Random, StaticSlots, taken
from prefect_gpu.papers.baselines.hived import HiveD, cell_gpus
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.placer import Placer
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from tests.scheduling.placement.kernels.clusters import PLACERS, check, cluster, clusters, gangs, workers
from tests.support import examples

TABLE: dict[str, tuple[Placer, str, int, list[int], Gang, Plan | None]] = {
    "even takes the node with the fewest GPUs in use": (Even(), "aaa", 4, [2, 4, 3], workers(1), (1,)),
    "even spreads a gang": (Even(), "aaa", 4, [2, 4, 3], workers(4), (1, 1, 2, 0)),
    "even passes over a node that cannot hold the container": (Even(), "aa", 4, [4, 3], workers(1, 4), (0,)),
    "first fit takes the lowest number": (FirstFit(), "aaa", 4, [1, 2, 4], workers(2, 2), (1, 2)),
    "pack takes the fullest node": (Pack(), "aaa", 4, [4, 1, 2], workers(3), (1, 2, 2)),
    "no placer crosses domains": (FirstFit(), "aa|bb", 4, [1, 1, 3, 3], workers(4), (2, 2, 2, 3)),
    "static slots give away whole slots": (StaticSlots(2), "aa", 4, [4, 4], workers(3), (0, 0, 1)),
    "a rest smaller than a slot is not used": (StaticSlots(3), "aa", 8, [2, 8], workers(2), (1, 1)),
    "a container may take several slots": (StaticSlots(2), "aa", 4, [3, 4], workers(1, 3), (1,)),
    "a container without GPUs takes no slot": (StaticSlots(4), "a", 4, [0], workers(1, 0), (0,)),
    "hived keeps large cells whole": (HiveD(), "aaa", 4, [4, 3, 2], workers(1), (1,)),
    "hived takes the smallest cell that is large enough": (HiveD(), "aaa", 8, [8, 5, 6], workers(1, 2), (2,)),
    "hived keeps a gang on one node": (HiveD(), "aaa", 4, [1, 1, 4], workers(2), (2, 2)),
    "hived keeps a gang in one rack": (HiveD(), "aabb", 4, [4, 1, 4, 4], workers(2, 4), (2, 3)),
    "hived keeps whole racks whole": (HiveD(), "aabb", 4, [4, 4, 4, 0], workers(1, 4), (2,)),
    "hived crosses racks if it must": (HiveD(), "aabb", 4, [4, 0, 4, 0], workers(2, 4), (0, 2)),
    "hived rounds up to a power of two": (HiveD(), "aa", 4, [3, 4], workers(1, 3), (1,)),
    "hived may fill a node with several cells": (HiveD(), "a", 6, [6], (Container(gpus=4), Container(gpus=2)), (0, 0)),
    "hived never crosses domains": (HiveD(), "a|b", 4, [4, 4], workers(2, 4), None),
}


@pytest.mark.parametrize(("placer", "racks", "gpus", "free", "gang", "plan"), TABLE.values(), ids=TABLE)
def test_placers(placer: Placer, racks: str, gpus: int, free: list[int], gang: Gang, plan: Plan | None) -> None:
    topology, available = cluster(racks, gpus, free)
    assert placer.place(gang, available, topology) == plan


# Each node: cores in all and free; the container; and the node chosen. Some scores, worked out by hand, stand beside.
KUBERNETES: dict[str, tuple[list[tuple[int, int]], Container, int]] = {
    "the emptier node wins": ([(10, 5), (10, 9)], Container(1, 1), 1),  # 40, 80
    "shares are of each node's own capacity": ([(10, 10), (40, 32)], Container(1, 2), 0),  # 80, 75
    "fractions of a score do not count": ([(1000, 999), (1000, 1000)], Container(1, 1), 0),
    "a pod that asks for nothing is scored as if it asked a little": ([(1, 1), (9, 9)], Container(1), 1),
    "a node without cores comes last": ([(0, 0), (10, 1)], Container(1), 1),
}


@pytest.mark.parametrize(("nodes", "container", "chosen"), KUBERNETES.values(), ids=KUBERNETES)
def test_kubernetes_default(nodes: list[tuple[int, int]], container: Container, chosen: int) -> None:
    count, (cores, free_cores) = len(nodes), zip(*nodes, strict=True)
    topology = Topology([0] * count, [0] * count, [8] * count, list(cores))
    free = Free([8] * count, list(free_cores))
    assert KubernetesDefault().place((container,), free, topology) == (chosen,)


def test_kubernetes_does_not_look_at_gpus() -> None:
    topology, free = Topology([0, 0], [0, 0], [8, 8], [16, 16]), Free([2, 8], [16, 16])
    assert KubernetesDefault().place(workers(1), free, topology) == (0,)


def test_a_cell_is_a_power_of_two() -> None:
    assert [cell_gpus(gpus) for gpus in range(10)] == [0, 1, 2, 4, 4, 8, 8, 8, 8, 16]


def test_random_uses_every_node_and_repeats_itself_with_the_same_seed() -> None:
    topology, free = cluster("aaaa", 2)
    draws = [Random().place(workers(1), free, topology, random.Random(seed)) for seed in range(60)]
    assert set(draws) == {(0,), (1,), (2,), (3,)}
    assert draws == [Random().place(workers(1), free, topology, random.Random(seed)) for seed in range(60)]
    assert Random().place(workers(3), free, topology) == Random().place(workers(3), free, topology)


def test_a_slot_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="slot_gpus is 0"):
        StaticSlots(slot_gpus=0)


@pytest.mark.parametrize("placer", PLACERS.values(), ids=PLACERS)
def test_an_empty_gang_and_a_cluster_of_other_size_are_refused(placer: Placer) -> None:
    topology, free = cluster("aa", 2)
    with pytest.raises(ValueError, match="gang is empty"):
        placer.place((), free, topology)
    with pytest.raises(ValueError, match="free has 1 nodes and the topology 2"):
        placer.place(workers(1), Free([2]), topology)


@pytest.mark.parametrize("placer", PLACERS.values(), ids=PLACERS)
@settings(max_examples=examples(0.25), deadline=None)
@given(cluster=clusters(), gang=gangs, seed=st.integers(0, 9))
def test_a_plan_is_whole_fits_and_stays_in_one_domain(
    placer: Placer, cluster: tuple[Topology, Free], gang: Gang, seed: int
) -> None:
    topology, free = cluster
    before = [array.tolist() for array in (free.gpus, free.cpus)]
    plan = placer.place(gang, free, topology, random.Random(seed))
    assert [array.tolist() for array in (free.gpus, free.cpus)] == before
    assert plan == placer.place(gang, free, topology, random.Random(seed))
    if plan is None:
        return
    check(taken(placer, gang), plan, free, topology)


@pytest.mark.parametrize("placer", PLACERS.values(), ids=PLACERS)
@settings(max_examples=examples(0.15), deadline=None)
@given(cluster=clusters(), gpus=st.integers(0, 9))
def test_a_single_container_is_placed_wherever_there_is_room(
    placer: Placer, cluster: tuple[Topology, Free], gpus: int
) -> None:
    topology, free = cluster
    gang = workers(1, gpus)
    (whole,) = taken(placer, gang)
    assert (placer.place(gang, free, topology) is not None) == bool(free.fits(whole).any())
