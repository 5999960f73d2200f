"""Algorithm 1 of Liquid, and ours beside it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.placement.kernels.best_fit import AnchoredBestFit, GangBestFit, in_turn
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from tests.scheduling.placement.kernels.clusters import cluster, clusters, gangs, with_server, workers
from tests.support import examples

TABLE: dict[str, tuple[str, int, list[int], Gang, Plan | None]] = {
    "one container goes to the fullest node that holds it": ("aaa", 8, [8, 1, 3], workers(1, 2), (2,)),
    "of equal nodes the first is taken": ("aaa", 4, [4, 2, 2], workers(1), (1,)),
    "two containers may share a node": ("aa", 4, [4, 4], workers(2), (0, 0)),
    "a second node is looked for in the same rack": ("abba", 2, [2, 2, 2, 2], workers(3), (0, 0, 3)),
    "the other rack comes before nothing": ("ab", 2, [1, 2], workers(3), (0, 1, 1)),
    "the first container cannot know where the others will fit": ("aa", 4, [1, 4], with_server(3), (0, 0, 1, 1)),
    "a gang that fits nowhere is not placed in part": ("aa", 2, [1, 1], workers(3), None),
    "a domain that is too small is passed over": ("a|bb", 4, [1, 4, 4], workers(5), (1, 1, 1, 1, 2)),
    "a gang never straddles two domains": ("a|b", 4, [4, 4], workers(8), None),
    "a container too large for any node waits": ("aa", 4, [4, 4], workers(1, 5), None),
    "a failing domain is left for the next one": ("aa|b", 4, [2, 1, 4], workers(1, 1) + workers(1, 3), (2, 2)),
}


@pytest.mark.parametrize(("racks", "gpus", "free", "gang", "plan"), TABLE.values(), ids=TABLE)
def test_best_fit(racks: str, gpus: int, free: list[int], gang: Gang, plan: Plan | None) -> None:
    topology, available = cluster(racks, gpus, free)
    assert GangBestFit().place(gang, available, topology) == plan
    assert available.gpus.tolist() == free


def test_cores_count_too() -> None:
    topology = Topology([0, 0], [0, 0], [4, 4], [8, 8])
    gang = (Container(1, 4), Container(1, 4))
    assert GangBestFit().place(gang, Free([4, 4], [3, 8]), topology) == (1, 1)
    assert GangBestFit().place(gang, Free([4, 4], [4, 4]), topology) == (0, 1)
    assert GangBestFit().place(gang, Free([4, 4], [3, 7]), topology) is None


def test_containers_take_turns_so_that_each_has_a_partner_to_be_near_to() -> None:
    gang = (Container(1), Container(2), Container(role="ps"), Container(1, role="ps"))
    assert in_turn(gang) == [3, 1, 2, 0]


def test_a_weight_beyond_one_is_refused() -> None:
    with pytest.raises(ValueError, match="network_weight is -1"):
        GangBestFit(network_weight=-1)


def test_the_anchored_one_sees_the_node_that_holds_the_whole_gang() -> None:
    topology, free = cluster("aabb", 8, [1, 2, 8, 5])
    gang = workers(4)
    assert GangBestFit().place(gang, free, topology) == (0, 1, 1, 3)
    assert AnchoredBestFit().place(gang, free, topology) == (3, 3, 3, 3)


def test_the_anchored_one_sees_the_rack_that_holds_the_whole_gang() -> None:
    topology, free = cluster("aabb", 4, [1, 2, 3, 3])
    gang = workers(6)
    plan = AnchoredBestFit().place(gang, free, topology)
    assert plan is not None and set(plan) == {2, 3}


@settings(max_examples=examples(0.6), deadline=None)
@given(cluster=clusters(), gang=gangs, weight=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_the_anchored_one_is_never_worse(cluster: tuple[Topology, Free], gang: Gang, weight: float) -> None:
    topology, free = cluster
    literal = GangBestFit(weight).place(gang, free, topology)
    ours = AnchoredBestFit(weight).place(gang, free, topology)
    if literal is not None:
        assert ours is not None
        assert topology.score(gang, ours, free, weight) <= topology.score(gang, literal, free, weight)


@settings(max_examples=examples(0.6), deadline=None)
@given(cluster=clusters(), gang=gangs, weight=st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_the_fast_scores_are_those_of_the_equations(cluster: tuple[Topology, Free], gang: Gang, weight: float) -> None:
    """Algorithm 1 once more, word by word and slowly, in the one domain that the plan ended in."""
    topology, free = cluster
    plan = GangBestFit(weight).place(gang, free, topology)
    if plan is None:
        return
    domain = topology.domains[plan[0]]
    order = in_turn(gang)
    left = free.copy()
    for step, index in enumerate(order):
        part = tuple(gang[number] for number in order[: step + 1])
        before = tuple(plan[number] for number in order[:step])
        scores = {
            node: topology.score(part, (*before, node), free, weight)
            for node in range(len(topology))
            if left.fits(gang[index])[node] and topology.domains[node] == domain
        }
        assert scores[plan[index]] <= min(scores.values()) + 1e-9
        left.take_one(gang[index], plan[index])
