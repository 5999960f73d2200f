"""The ledger of cores: what was taken from a job is given back to it, by whoever took it, as far as cores are free."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.cores.ledger import forget, free_cores, give_back, resize, take
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.instructions import SetCores
from prefect_gpu.scheduling.model.jobs import Job, Request
from tests.scheduling.world import World, asks, node

ABLE = Abilities(Preemption.INSTANT, cores=True)


def running(cpus: int = 4) -> tuple[World, Decision, Job]:
    """A job with so many of eight cores, and a decision in the making."""
    world = World(node("n", 8, 8, near={1: (6, 7)}), abilities=ABLE)
    world.submit("job", request=asks(cpus=cpus))
    return world, Decision(world.state, world.scheduler.profile.policies, ABLE, world.now), world.state.jobs["job"]


def cores(job: Job) -> tuple[int, ...]:
    assert job.placement is not None
    return job.placement.cpus


def test_what_was_taken_is_given_back_and_not_owed_any_more() -> None:
    _, decision, job = running()
    assert take(job, cores(job)[:1], "one", decision, "others need them") and cores(job) == (0,)
    give_back(job, "another", decision, "that one took nothing")
    assert cores(job) == (0,)
    give_back(job, "one", decision, "nobody needs them")
    assert cores(job) == (0, 1, 2, 3) and not job.cores_before
    assert [said.reason for said in decision.instructions if isinstance(said, SetCores)] == [
        "others need them",
        "nobody needs them",
    ]


def test_what_is_missing_stays_owed_until_cores_are_free() -> None:
    world, decision, job = running()
    take(job, cores(job)[:1], "one", decision, "why")
    world.submit("other", request=asks(cpus=6))
    give_back(job, "one", decision, "why")
    assert len(cores(job)) == 2 and job.cores_before == {"one": 4}
    world.end("other")
    give_back(job, "one", decision, "why")
    assert len(cores(job)) == 4 and not job.cores_before


def test_each_gives_back_what_it_took_itself() -> None:
    _, decision, job = running()
    take(job, cores(job)[:3], "one", decision, "why")
    take(job, cores(job)[:2], "other", decision, "why")
    take(job, cores(job)[:1], "one", decision, "why")
    assert job.cores_before == {"one": 4, "other": 3}
    give_back(job, "other", decision, "why")
    assert len(cores(job)) == 3 and job.cores_before == {"one": 4}
    forget(job, "one")
    give_back(job, "one", decision, "why")
    assert len(cores(job)) == 3


@pytest.mark.parametrize(("enough", "has"), [(None, 4), (2, 2), (9, 4), (1, 1)])
def test_nobody_gets_back_more_than_is_enough_for_it(enough: int | None, has: int) -> None:
    _, decision, job = running()
    take(job, cores(job)[:1], "one", decision, "why")
    give_back(job, "one", decision, "why", enough=enough)
    assert len(cores(job)) == has and not job.cores_before


@pytest.mark.parametrize(("count", "by"), [(2, -2), (4, 0), (6, 2), (20, 4)])
def test_a_job_gets_as_many_cores_as_there_are(count: int, by: int) -> None:
    _, decision, job = running()
    assert resize(job, count, decision, "why") == by
    assert len(cores(job)) == 4 + by and len(decision.instructions) == (by != 0)


def test_cores_near_the_devices_come_first() -> None:
    world, _, job = running(cpus=2)
    assert free_cores("n", 3, world.state) == (2, 3, 4)
    assert free_cores("n", 3, world.state, ("n1",)) == (2, 6, 7)
    assert cores(job) == (0, 1)


def test_a_stop_wipes_what_is_owed_and_a_copy_has_books_of_its_own() -> None:
    world = World(node("n", 8), abilities=ABLE)
    world.submit("job", request=Request(preemptible=True, cpus=4))
    decision = Decision(world.state, world.scheduler.profile.policies, ABLE, world.now)
    job = world.state.jobs["job"]
    before = job.cores_before
    take(job, cores(job)[:1], "one", decision, "why")
    assert before == {}, "it is never changed in place"
    decision.preempt(job, "why")
    assert job.cores_before == {}


def test_a_job_whose_device_is_none_of_its_node_any_more_may_have_more_cores() -> None:
    """An earlier worker gave it a device that the operator has since taken out of the pool."""
    world = World(node("n", 2, 8, near={1: (6, 7)}), abilities=ABLE)
    world.adopt("job", Placement("n", ("n7",), (0, 1)))
    job = world.state.jobs["job"]
    decision = Decision(world.state, world.scheduler.profile.policies, ABLE, world.now)
    assert resize(job, 4, decision, "it trains faster") == 2 and cores(job) == (0, 1, 2, 3)


def test_of_fewer_cores_a_job_keeps_those_that_it_has_alone() -> None:
    """Both kept the first four, and stayed there for good while the others were free."""
    world, decision, job = running(cpus=8)
    world.submit("other", request=asks(cpus=8))
    other = world.state.jobs["other"]
    assert cores(job) == cores(other), "there is no free one"
    resize(job, 4, decision, "why")
    resize(other, 4, decision, "why")
    assert len(cores(job)) == len(cores(other)) == 4 and {*cores(job)}.isdisjoint(cores(other))
