"""What keeps a job back although a device is free: limits, pauses, draining, and big jobs that have waited long."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement, Queue
from tests.scheduling.world import PATIENCE_S, World, asks, node

# limits, the queue of each job, how many start, and what the first that waits is told
LIMITS: dict[str, tuple[list[Queue], dict[str, Any], list[str], int, str]] = {
    "the worker's limit counts every run": ([], {"worker_limit": 2}, ["q", "r", "s"], 2, "worker's limit of 2"),
    "a worker's limit of 0 starts nothing": ([], {"worker_limit": 0}, ["q"], 0, "worker's limit of 0"),
    "the pool's limit counts every run": ([], {"pool_limit": 1}, ["q", "r"], 1, "work pool's limit of 1"),
    "the pool's limit counts the runs of other workers": (
        [],
        {"pool_limit": 3, "pool_active_elsewhere": 2},
        ["q", "q"],
        1,
        "work pool's limit of 3",
    ),
    "a queue's limit counts the runs of that queue": (
        [Queue("q", "narrow", limit=1), Queue("r")],
        {},
        ["q", "q", "r", "r"],
        3,
        "limit of 1 run at once in work queue 'narrow'",
    ),
    "a queue's limit counts its runs under other workers": (
        [Queue("q", "narrow", limit=2, active_elsewhere=1)],
        {},
        ["q", "q"],
        1,
        "limit of 2 runs at once in work queue 'narrow'",
    ),
    "runs of other workers do not count against this worker's limit": (
        [Queue("q", active_elsewhere=5)],
        {"worker_limit": 1, "pool_active_elsewhere": 5},
        ["q", "q"],
        1,
        "worker's limit of 1",
    ),
    "nothing of a paused pool starts": ([], {"pool_paused": True}, ["q"], 0, "the work pool is paused"),
    "nothing of a paused queue starts, and other queues go on": (
        [Queue("q", "later", paused=True), Queue("r")],
        {},
        ["q", "r"],
        1,
        "the work queue 'later' is paused",
    ),
}


@pytest.mark.parametrize("queues, quotas, jobs, started, reason", LIMITS.values(), ids=LIMITS.keys())
def test_limits(queues: list[Queue], quotas: dict[str, Any], jobs: list[str], started: int, reason: str) -> None:
    world = World(node("n", 8, 8, 8, 8, 8))
    world.limit(*queues, **quotas)
    for number, queue in enumerate(jobs):
        world.submit(f"{queue}{number}", queue=queue)
    assert len(world.launched) == started
    waiting = min(job.id for job in world.state.waiting())
    assert reason in world.reason(waiting)
    assert world.held(waiting) == ["paused" if "paused" in reason else "limit"]


def test_a_limit_that_is_raised_starts_what_it_kept_back() -> None:
    world = World(node("n", 8, 8, 8), worker_limit=1)
    world.submit("a", "b", "c")
    world.limit(worker_limit=2)
    assert world.launched == ["a", "b"]
    world.limit()
    assert world.launched == ["a", "b", "c"]


def test_a_limit_that_is_lowered_stops_nothing_and_starts_nothing() -> None:
    world = World(node("n", 8, 8, 8))
    world.submit("a", "b")
    world.limit(worker_limit=1)
    world.submit("c")
    world.end("a")
    assert world.launched == ["a", "b"]
    world.end("b")
    assert world.launched == ["a", "b", "c"]


def test_adopted_jobs_count_against_the_limits() -> None:
    world = World(node("n", 8, 8), worker_limit=1)
    world.submit("a")
    world.end("a")
    world.adopt("old", place_of(world, "a"))
    world.submit("b")
    assert world.held("b") == ["limit"]
    world.end("old")
    assert world.launched == ["a", "b"]


def place_of(world: World, job: str) -> Any:
    """Where the job was launched."""
    return next(said.placement for said in world.instructions if said.job == job and hasattr(said, "placement"))


def test_a_draining_worker_starts_nothing_and_sees_its_runs_to_the_end() -> None:
    world = World(node("n", 8, 8))
    world.submit("a")
    world.handle(ev.DrainRequested())
    world.submit("b")
    assert world.held("b") == ["draining"] and world.places == {"a": "n0"}
    world.end("a")
    world.wait(10_000)
    assert world.launched == ["a"]


def test_a_pause_that_ends_starts_what_waited_in_order() -> None:
    world = World(node("n", 8), pool_paused=True)
    world.submit("a", "b")
    world.limit()
    assert world.launched == ["a"] and world.held("b") == ["paused", "devices"]


# -- patience -----------------------------------------------------------------------------------------------------


def big_job_behind_a_small_one(*more_nodes: Any) -> World:
    """One of two devices is taken, and a gang of two waits."""
    world = World(node("n", 8, 8), *more_nodes)
    world.submit("small")
    world.submit("big", request=asks(2))
    return world


def test_a_small_job_overtakes_a_big_one_that_cannot_start() -> None:
    world = big_job_behind_a_small_one()
    world.wait(PATIENCE_S - 1)
    world.submit("b")
    assert world.places == {"small": "n0", "b": "n1"}


def test_nobody_overtakes_a_job_that_has_lost_patience() -> None:
    world = big_job_behind_a_small_one()
    world.wait(PATIENCE_S)
    world.submit("b")
    assert world.held("b") == ["reserved"] and world.reason("b") == "its devices are kept for run big"
    world.end("small")
    assert world.places == {"big": "n0 n1"}
    world.end("big")
    assert world.places == {"b": "n0"}


def test_a_big_job_starts_in_the_end_although_small_ones_keep_coming() -> None:
    world = big_job_behind_a_small_one()
    world.submit("s0")
    running, number = ["small", "s0"], 0
    while "big" not in world.launched and number < 100:
        number += 1
        world.submit(f"s{number}")
        world.now += 10
        world.end(running.pop(0))
        running = [job for job in world.places if job != "big"]
    assert "big" in world.launched


def test_the_moment_at_which_patience_is_lost_is_announced() -> None:
    world = big_job_behind_a_small_one()
    due = world.scheduler.next_due()
    assert due == world.now + PATIENCE_S
    world.wait(due - world.now)
    assert world.scheduler.next_due() is None
    world.submit("b")
    assert world.held("b") == ["reserved"]


@pytest.mark.parametrize("due", [0.1, 0.3, 1e9 + 0.1, 1.7e9 + 1 / 3])
def test_patience_is_lost_at_the_very_moment_that_was_announced(due: float) -> None:
    """Sums and differences of such times are not equal to the last bit."""
    world = World(node("n", 8, 8))
    world.now = due
    world.submit("small")
    world.submit("big", request=asks(2))
    moment = world.scheduler.next_due()
    assert moment is not None
    world.now = moment
    world.wait(0)
    world.submit("b")
    assert world.held("b") == ["reserved"]


def test_devices_that_the_big_job_could_not_use_stay_open_to_others() -> None:
    world = World(node("n", 80, 8))
    world.submit("holder", request=asks(1, 60))
    world.submit("big", request=asks(1, 60))
    world.wait(PATIENCE_S)
    world.submit("small", request=asks(1, 6))
    assert world.places == {"holder": "n0", "small": "n1"}


def test_a_node_that_the_big_job_could_not_use_stays_open_to_others() -> None:
    world = World(node("n", 8, 8), node("m", 8))
    world.adopt("old", Placement("n", ("n0",), ()))
    world.submit("big", request=asks(2))
    world.wait(PATIENCE_S)
    world.submit("a", "b")
    assert world.places == {"old": "n0", "a": "m0"} and world.held("b") == ["reserved"]


def test_a_job_that_prefers_a_kept_node_goes_to_another() -> None:
    """The fuller node is kept; the other one, which the big job could not use, must not stay idle."""
    world = World(node("n", 8, 8, 8), node("m", 8, 8))
    world.submit("a", request=asks(2))
    world.submit("b", request=asks(2))
    world.submit("big", request=asks(3))
    assert world.places == {"a": "m0 m1", "b": "n0 n1"}
    world.end("a")
    world.wait(PATIENCE_S)
    world.submit("c")
    assert world.places == {"b": "n0 n1", "c": "m0"}


def test_two_big_jobs_that_lost_patience_start_in_order() -> None:
    world = big_job_behind_a_small_one()
    world.now += 1
    world.submit("big2", request=asks(2))
    world.wait(PATIENCE_S)
    world.submit("b")
    world.end("small")
    world.end("big")
    world.end("big2")
    assert world.launched == ["small", "big", "big2", "b"]


def test_an_impatient_job_that_is_itself_kept_back_keeps_devices_too() -> None:
    world = World(node("n", 8, 8, 8), node("m", 8, 8))
    world.adopt("x", Placement("n", ("n0",), ()))
    world.adopt("y", Placement("m", ("m0",), ()))
    world.submit("three", request=asks(3))
    world.wait(PATIENCE_S)
    world.submit("pair", request=asks(2))
    assert world.held("pair") == ["reserved"], "n is kept for the gang of three"
    world.wait(PATIENCE_S)
    world.submit("a")
    assert world.held("a") == ["reserved"], "and m, in the end, for the gang of two"


def test_an_impatient_job_of_a_queue_of_lower_priority_keeps_nothing_from_a_higher_one() -> None:
    world = World(node("n", 8, 8))
    world.limit(Queue("low", priority=2), Queue("high", priority=1))
    world.submit("small", queue="low")
    world.submit("big", request=asks(2), queue="low")
    world.wait(PATIENCE_S)
    world.submit("urgent", queue="high")
    assert world.places == {"small": "n0", "urgent": "n1"}


def test_a_job_that_needs_no_device_passes_an_impatient_one() -> None:
    world = big_job_behind_a_small_one()
    world.wait(PATIENCE_S)
    world.submit("b", request=asks(0))
    assert "b" in world.places


def test_an_impossible_job_keeps_nothing() -> None:
    world = World(node("n", 8, 8))
    world.submit("never", request=asks(3))
    world.wait(PATIENCE_S)
    world.submit("a")
    assert world.places == {"a": "n0"}


def test_a_job_that_a_limit_keeps_back_keeps_nothing() -> None:
    world = World(node("n", 8, 8))
    world.limit(Queue("q", limit=0), Queue("r"))
    world.submit("big", request=asks(2), queue="q")
    world.wait(PATIENCE_S)
    world.submit("a", queue="r")
    assert world.places == {"a": "n0"}


def test_what_was_kept_is_free_again_when_the_big_job_is_withdrawn() -> None:
    world = big_job_behind_a_small_one()
    world.wait(PATIENCE_S)
    world.submit("b")
    world.handle(ev.JobWithdrawn("big", "it was cancelled"))
    assert world.places == {"small": "n0", "b": "n1"}
