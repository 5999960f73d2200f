"""Which waiting job is looked at first?"""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling.model.cluster import Queue
from tests.scheduling.world import World, asks, node

# (job, queue, due, submitted), in the order of submission; the queues' priorities; the order of their launches.
TABLE = {
    "of equal jobs the one that is due first goes first": (
        [("late", "q", 30.0, 0.0), ("early", "q", 10.0, 5.0)],
        {},
        ["early", "late"],
    ),
    "of jobs due at once the one submitted first goes first": (
        [("b", "q", 10.0, 6.0), ("a", "q", 10.0, 5.0)],
        {},
        ["a", "b"],
    ),
    "of jobs that are equal in all the smallest id goes first": (
        [("b", "q", 10.0, 5.0), ("a", "q", 10.0, 5.0)],
        {},
        ["a", "b"],
    ),
    "a queue of higher priority goes before an earlier job": (
        [("early", "low", 10.0, 0.0), ("late", "high", 30.0, 5.0)],
        {"low": 2, "high": 1},
        ["late", "early"],
    ),
    "a queue that nobody knows goes last": (
        [("stray", "unknown", 10.0, 0.0), ("known", "low", 30.0, 5.0)],
        {"low": 100},
        ["known", "stray"],
    ),
}


@pytest.mark.parametrize("jobs, priorities, expected", TABLE.values(), ids=TABLE.keys())
def test_order(jobs: list[tuple[str, str, float, float]], priorities: dict[str, int], expected: list[str]) -> None:
    world = World(node("n", 8))
    world.limit(*(Queue(name, name, priority) for name, priority in priorities.items()))
    world.submit("holder", queue="q", due=0.0)
    for job, queue, due, submitted in jobs:
        world.submit(job, queue=queue, due=due, at=submitted)
    for job in ["holder", *expected]:
        world.end(job)
    assert world.launched == ["holder", *expected]


def test_a_job_starts_when_it_is_due_and_not_before() -> None:
    world = World(node("n", 8))
    world.submit("a", due=world.now + 50)
    assert world.launched == [] and world.held("a") == ["due"]
    assert world.scheduler.next_due() == world.now + 50
    world.wait(49)
    assert world.launched == []
    world.wait(1)
    assert world.launched == ["a"]
    assert world.scheduler.next_due() is None


def test_a_job_that_is_put_forward_starts_at_its_new_time() -> None:
    world = World(node("n", 8))
    world.submit("a", due=world.now + 500)
    world.submit("a", due=world.now)
    assert world.launched == ["a"]


def test_a_job_that_is_put_off_starts_at_its_new_time() -> None:
    world = World(node("n", 8))
    world.submit("a", due=world.now + 10)
    world.submit("a", due=world.now + 20)
    world.wait(10)
    assert world.launched == []
    world.wait(10)
    assert world.launched == ["a"]


def test_a_job_moved_to_a_queue_of_higher_priority_is_looked_at_there() -> None:
    world = World(node("n", 8))
    world.limit(Queue("low", priority=9), Queue("high", priority=1))
    world.submit("holder")
    world.submit("a", queue="low")
    world.submit("b", queue="low", due=world.now + 0.5)
    world.submit("b", queue="high", due=world.now + 0.5)
    world.now += 1
    world.end("holder")
    assert world.launched == ["holder", "b"]


def test_a_job_that_became_due_unnoticed_is_still_announced() -> None:
    """An event that changes nothing, just after the job was due, must not push the moment out of sight."""
    world = World(node("n", 8))
    world.submit("a", due=world.now + 50)
    world.now += 50.5
    world.end("nobody")
    due = world.scheduler.next_due()
    assert due is not None and due <= world.now
    world.submit("b")
    assert world.launched == ["a"], "a submission looks at everybody once somebody else has become due"


def test_a_renamed_job_is_called_by_its_new_name() -> None:
    world = World(node("n", 8))
    world.submit("holder")
    world.submit("a")
    world.state.jobs["a"].name = "old"
    world.submit("a")
    assert world.state.jobs["a"].label == "run a"


def test_thousands_of_jobs_are_taken_in_without_looking_at_all_of_them_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(node("n", 8))
    looks = 0
    place = type(world.scheduler.profile.placement).place

    def counted(*args: object, **kwargs: object) -> object:
        nonlocal looks
        looks += 1
        return place(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(type(world.scheduler.profile.placement), "place", counted)
    world.now += 500  # all are impatient, so that devices are kept for the first
    for number in range(1000):
        world.submit(f"{number:04}", request=asks(1), due=0.0)
    assert looks < 3000
    looks = 0
    world.end("0000")
    assert world.launched[-1] == "0001" and looks < 5
