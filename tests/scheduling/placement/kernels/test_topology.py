"""What a message costs, and how good a plan is: Liquid's equations 2, 4 and 6, worked by hand."""

from __future__ import annotations

import math

import pytest

from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.topology import Topology
from tests.scheduling.placement.kernels.clusters import cluster, with_server, workers

PAIRS: dict[str, tuple[int, int, float]] = {
    "a node talks to itself for nothing": (1, 1, 0),
    "nodes of one rack share it with the rack's nodes": (0, 2, 3),
    "nodes of two racks share the domain's network with all its nodes": (0, 3, 5),
    "nodes of two domains cannot work together": (0, 5, math.inf),
}


@pytest.mark.parametrize(("one", "other", "cost"), PAIRS.values(), ids=PAIRS)
def test_cost_between_two_nodes(one: int, other: int, cost: float) -> None:
    topology, _ = cluster("aaabb|cc", 4)
    assert topology.cost(one, other) == topology.cost(other, one) == cost
    assert topology.costs_from(one)[other] == cost


def test_the_same_rack_number_in_two_domains_is_two_racks() -> None:
    topology = Topology(domains=[0, 0, 1, 1], racks=[7, 7, 7, 7], gpus_total=[1] * 4)
    assert topology.racks.tolist() == [0, 0, 1, 1] and topology.rack_nodes.tolist() == [2] * 4


PLANS: dict[str, tuple[Gang, Plan, float, float]] = {
    "two servers and two workers are four pairs": (
        (Container(role="ps"), Container(role="ps"), Container(), Container()),
        (0, 1, 0, 3),
        0 + 5 + 3 + 5,
        13 / 4,
    ),
    "the place of a gang's only server decides": (with_server(3), (0, 0, 1, 3), 0 + 3 + 5, 8 / 3),
    "workers alone talk to each other": (workers(3), (0, 1, 3), 3 + 5 + 5, 13 / 3),
    "workers on one node talk for nothing": (workers(3), (1, 1, 1), 0, 0),
    "servers without a worker are taken as equals too": ((Container(role="ps"),) * 2, (0, 1), 3, 3),
    "one container has nobody to talk to": (workers(1), (2,), 0, 0),
    "a plan across domains costs everything": (workers(2), (0, 5), math.inf, math.inf),
}


@pytest.mark.parametrize(("gang", "plan", "total", "mean"), PLANS.values(), ids=PLANS)
def test_network_cost_of_a_plan(gang: Gang, plan: Plan, total: float, mean: float) -> None:
    topology, _ = cluster("aaabb|cc", 4)
    assert topology.network_cost(gang, plan, normalised=False) == total
    assert topology.network_cost(gang, plan) == pytest.approx(mean)


def test_score_weighs_the_network_against_full_nodes() -> None:
    topology, free = cluster("aab", 4, free=[2, 4, 4])
    gang = with_server(2)
    # Node 0: 1 asked + 2 used of 4; node 1: 1 asked of 4; the server and one worker are apart in a rack of 2 nodes.
    load = -(3 / 4 + 1 / 4)
    assert topology.score(gang, (0, 0, 1), free, 1.0) == pytest.approx(2 / 2)
    assert topology.score(gang, (0, 0, 1), free, 0.0) == pytest.approx(load)
    assert topology.score(gang, (0, 0, 1), free, 0.25) == pytest.approx(0.25 * 1 + 0.75 * load)


def test_a_node_without_gpus_counts_as_full() -> None:
    topology, free = cluster("a", 0)
    assert topology.score((Container(role="ps"),), (0,), free, 0.0) == -1.0


BAD: dict[str, tuple[dict[str, list[int]], str]] = {
    "a rack is missing": ({"racks": [0]}, "racks has 1 entries for 2 nodes"),
    "negative GPUs": ({"gpus_total": [1, -1]}, "gpus_total of node 1 is -1: give 0 or more"),
    "no node": ({"gpus_total": []}, "gpus_total is empty"),
    "half a core": ({"cpus_total": [1, 0.5]}, "cpus_total has shape"),  # type: ignore[list-item]
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_a_topology_that_cannot_be_is_refused(change: dict[str, list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology(**({"domains": [0, 0], "racks": [0, 0], "gpus_total": [1, 1]} | change))


def test_a_weight_beyond_one_is_refused() -> None:
    topology, free = cluster("a", 1)
    with pytest.raises(ValueError, match=r"network_weight is 1\.5"):
        topology.score(workers(1), (0,), free, 1.5)


def test_taking_more_than_is_free_takes_nothing() -> None:
    free = Free([2, 2], [4, 4])
    with pytest.raises(ValueError, match="more on node 1 than it has free"):
        free.take(workers(4), (0, 1, 1, 1))
    assert free.gpus.tolist() == [2, 2]
    with pytest.raises(ValueError, match="plan names 1 nodes for 2 containers"):
        free.take(workers(2), (0,))
