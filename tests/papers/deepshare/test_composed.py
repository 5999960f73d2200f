"""The profile ``deepshare-search``: events in, instructions expected."""

from __future__ import annotations

from prefect_gpu.papers.deepshare.profiles import search
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.instructions import Launch, Preempt
from tests.papers.deepshare.test_contention_aware import INSTANT, SPEEDS, Cluster, table


def cluster(abilities: Abilities = INSTANT) -> Cluster:
    """Four nodes of four devices; two loud jobs halve each other's speed."""
    return Cluster(search(table(), SPEEDS), abilities=abilities)


def test_loud_jobs_are_kept_apart_and_the_reason_says_what_they_keep() -> None:
    world = cluster()
    world.submit("l1", "l2", kind="loud", gpus=4)
    nodes = [set(one.replace("2", "").split()) for one in world.places.values()]
    assert len(nodes) == 2
    assert nodes[0].isdisjoint(nodes[1])
    reasons = [one.reason for one in world.said if isinstance(one, Launch)]
    assert all("it is expected to keep 100% of its speed alone on its nodes" in one for one in reasons)


def test_nobody_is_put_on_one_node() -> None:
    world = cluster()
    world.submit(*(f"j{n}" for n in range(20)), gpus=2)
    assert len(world.places) == 8
    assert {len(one.split()) for one in world.places.values()} == {2}


def test_those_who_wait_are_told_why() -> None:
    world = cluster()
    world.submit(*(f"j{n}" for n in range(3)), gpus=8)
    assert len(world.places) == 2
    assert list(world.codes.values())[-1] == "contention"


def test_nothing_is_decided_anew_while_nothing_has_changed() -> None:
    world = cluster()
    world.submit("a", "b", "c", gpus=8)
    assert world.handle(ev.TimePassed(), at=10.0) == []


def test_a_running_job_makes_room_for_one_that_is_worth_more() -> None:
    world = cluster()
    world.submit("long1", "long2", "long3", "long4", kind="loud", gpus=8, service_s=90_000.0)
    said = world.submit(*(f"short{n}" for n in range(8)), gpus=2, service_s=600.0)
    assert any(isinstance(one, Preempt) for one in said)


def test_where_moving_costs_something_the_greedy_rule_decides_and_stops_nobody() -> None:
    world = cluster(Abilities(Preemption.GRACEFUL))
    world.submit("l1", "l2", kind="loud", gpus=4)
    world.submit("q1", "q2", "q3", "q4", gpus=4)
    assert world.places
    assert not any(isinstance(one, Preempt) for one in world.said)
