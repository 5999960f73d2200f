"""Launches that fail, jobs that are adopted, and events that come late, twice, or cannot be."""

from __future__ import annotations

import pytest

from prefect_gpu.scheduling import SchedulingError
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job, Request, Status
from prefect_gpu.scheduling.order.orders import Fifo, Usage
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.world import GIB, PATIENCE_S, World, asks, node

# -- policies that fail -------------------------------------------------------------------------------------------


class Turns(Fifo):
    """An order whose keys cannot be compared any more after a while."""

    steady = False

    def key(self, job: Job, state: Usage, now: float) -> tuple[object, ...]:
        """See the class."""
        return ("late" if now > 1050.0 and job.id == "b" else 0.0, job.id)


def test_a_job_whose_key_can_no_longer_be_compared_is_named() -> None:
    world = World(node("n", 8), profile=Profile("test", Turns()))
    world.submit("first", "a", "b", "c")
    world.now += 60.0
    with pytest.raises(SchedulingError, match="Turns cannot sort run b: TypeError") as failed:
        world.handle(ev.TimePassed())
    assert failed.value.job == "b"
    world.handle(ev.PlacingFailed("b", str(failed.value), world.now + 60.0))
    world.end("first")
    assert world.places == {"a": "n0"}, "others go on"


# -- launches that fail -------------------------------------------------------------------------------------------


def test_a_failed_launch_frees_the_device_and_is_tried_again_later() -> None:
    world = World(node("n", 8))
    world.submit("a")
    world.handle(ev.LaunchFailed("a", "no API", world.now + 2))
    assert world.places == {} and world.held("a") == ["due"]
    assert world.reason("a") == "its launch failed and is tried again soon"
    assert world.scheduler.next_due() == world.now + 2
    world.wait(2)
    assert world.launched == ["a", "a"]


def test_a_launch_may_fail_although_the_job_is_said_to_prepare() -> None:
    world = World(node("n", 8))
    world.submit("a")
    world.handle(ev.PhaseEntered("a", Status.PREPARING))  # as an earlier process of the job reported
    world.handle(ev.LaunchFailed("a", "no API", world.now + 2))
    assert world.places == {} and world.held("a") == ["due"]


def test_a_failed_launch_lets_the_next_job_go_first() -> None:
    world = World(node("n", 8))
    world.submit("a", "b")
    world.handle(ev.LaunchFailed("a", "no API", world.now + 2))
    assert world.places == {"b": "n0"}


def test_a_job_keeps_its_place_in_the_queue_over_a_failed_launch() -> None:
    world = World(node("n", 8), worker_limit=1)
    world.submit("a")
    world.now += 1
    world.submit("b", due=world.now + 0.5)
    world.handle(ev.LaunchFailed("a", "no API", world.now + 2))
    world.limit(pool_paused=True)
    world.wait(5)
    world.limit()
    assert world.launched == ["a", "a"]


def test_a_job_keeps_its_patience_over_a_failed_launch() -> None:
    world = World(node("n", 8, 8))
    world.submit("big", request=asks(2))
    world.wait(PATIENCE_S)
    world.handle(ev.LaunchFailed("big", "no API", world.now + 2))
    world.submit("small")
    world.wait(2)
    world.submit("b")
    assert world.held("b") == ["reserved"]


def test_submitting_again_does_not_start_a_failed_launch_any_sooner() -> None:
    world = World(node("n", 8))
    world.submit("a", due=0.0)
    world.handle(ev.LaunchFailed("a", "no API", world.now + 2))
    world.submit("a", due=0.0)
    world.submit("a", request=asks(1, 4), due=0.0)
    assert world.places == {}
    world.wait(2)
    assert world.places == {"a": "n0"}


# -- adoption -----------------------------------------------------------------------------------------------------


def test_an_adopted_job_holds_its_device_its_cores_and_its_memory() -> None:
    world = World(node("n", 8, 8))
    world.adopt("old", Placement("n", ("n0",), (0, 1, 2, 3), 5 * GIB, True), asks(1, 5, shares=True))
    world.submit("alone")
    world.submit("guest", request=asks(1, 4, shares=True))
    world.submit("small guest", request=asks(1, 3, shares=True))
    assert world.places == {"old": "n0", "alone": "n1", "small guest": "n0"}
    alone = world.state.jobs["alone"].placement
    assert alone is not None and alone.cpus == (4, 5, 6, 7)


def test_a_job_that_waits_may_turn_out_to_run_already() -> None:
    world = World(node("n", 8))
    world.limit(pool_paused=True)
    world.submit("a")
    world.adopt("a", Placement("n", ("n0",), (0,), 8 * GIB))
    world.limit()
    assert world.launched == [] and world.places == {"a": "n0"}


@pytest.mark.parametrize(
    "place",
    [
        Placement("n", ("gone",), (0, 1), 8 * GIB),
        Placement("old name", ("n0",), (0, 1), 8 * GIB),
        Placement("elsewhere", ("gone",), (98, 99), 8 * GIB),
    ],
    ids=["a device that is gone", "a node that has another name now", "a node that is gone"],
)
def test_a_job_on_something_that_is_no_longer_there_is_followed_to_its_end(place: Placement) -> None:
    world = World(node("n", 8))
    world.adopt("old", place)
    world.submit("a")
    assert world.places["old"] == place.devices[0]
    assert ("a" in world.places) == (place.devices[0] != "n0"), "a device in use is in use, whatever its node is called"
    world.end("old", "a")
    world.submit("b")
    assert world.places == {"b": "n0"}


def test_a_job_on_a_device_that_disappears_keeps_it_until_it_ends() -> None:
    world = World(node("n", 8, 8))
    world.submit("a", "b")
    world.handle(ev.NodesChanged((node("n", 8),)))
    world.submit("c")
    assert world.places == {"a": "n0", "b": "n1"}
    world.end("b")
    assert "c" not in world.places
    world.end("a")
    assert world.places == {"c": "n0"}


def test_two_adopted_jobs_on_one_device_are_a_fact_and_nothing_is_added() -> None:
    """One of them has ended, and its worker died before it could settle that."""
    world = World(node("n", 8))
    world.adopt("ended", Placement("n", ("n0",), (0,), 8 * GIB))
    world.adopt("running", Placement("n", ("n0",), (0,), 8 * GIB))
    world.submit("a", request=asks(1, 1, shares=True))
    world.end("ended")
    assert world.places == {"running": "n0"}
    world.end("running")
    assert world.places == {"a": "n0"}


def test_a_device_that_shrank_under_its_jobs_takes_no_more_of_them() -> None:
    world = World(node("n", 8))
    world.submit("a", "b", request=asks(1, 4, shares=True))
    world.handle(ev.NodesChanged((node("n", 4),)))
    world.submit("c", request=asks(1, 1, shares=True))
    assert "c" not in world.places
    world.end("a")
    assert "c" not in world.places
    world.end("b")
    assert world.places == {"c": "n0"}


def test_an_adopted_job_of_unknown_status_is_launching() -> None:
    world = World(node("n", 8))
    place = Placement("n", ("n0",), (0,), 8 * GIB)
    world.handle(ev.JobAdopted("a", Request(), "q", 0.0, place, Status.WAITING))
    assert world.state.jobs["a"].status is Status.LAUNCHING


def test_an_adopted_job_that_takes_too_much_is_a_fact_also_once_its_gate_opens() -> None:
    world = World(node("n", 8))
    world.adopt("a", Placement("n", ("n0",), (0,), 8 * GIB))
    too_much = Placement("n", ("n0",), (0,), 9 * GIB)
    world.handle(ev.JobAdopted("b", Request(), "q", 0.0, too_much, Status.WAITING, behind="a"))
    world.end("a")  # the world checks the books after each event
    assert world.places == {"b": "n0"}


def test_an_adopted_job_does_not_wait_for_who_has_other_devices_by_now() -> None:
    world = World(node("n", 8, 8))
    world.adopt("elsewhere", Placement("n", ("n1",), (0,), 8 * GIB))
    world.adopt("there", Placement("n", ("n0",), (1,), 8 * GIB))
    place = Placement("n", ("n0",), (2,), 8 * GIB)
    world.handle(ev.JobAdopted("b", Request(), "q", 0.0, place, Status.WAITING, behind="elsewhere"))
    assert world.state.jobs["b"].behind is None
    world.end("elsewhere")  # the world checks the books after each event
    assert world.places == {"there": "n0", "b": "n0"}


# -- late, repeated and impossible events -------------------------------------------------------------------------

_PLACE = Placement("n", ("n1",), (0,), 8 * GIB)
NOTHING = {
    "the end of a job that nobody knows": ev.JobEnded("unknown", "x"),
    "the end of a job that waits": ev.JobEnded("waiting", "x"),
    "the withdrawal of a job that nobody knows": ev.JobWithdrawn("unknown", "x"),
    "the withdrawal of a job that runs": ev.JobWithdrawn("running", "x"),
    "the withdrawal of a job that is being launched": ev.JobWithdrawn("launching", "x"),
    "a failed launch of a job that nobody knows": ev.LaunchFailed("unknown", "x", 0.0),
    "a failed launch of a job that waits": ev.LaunchFailed("waiting", "x", 1e12),
    "a failed launch of a job that trains": ev.LaunchFailed("running", "x", 0.0),
    "a phase of a job that nobody knows": ev.PhaseEntered("unknown", Status.TRAINING),
    "a phase of a job that waits": ev.PhaseEntered("waiting", Status.TRAINING),
    "the phase that a job is in already": ev.PhaseEntered("running", Status.TRAINING),
    "a phase that is none": ev.PhaseEntered("running", Status.WAITING),
    "the submission of a job that runs": ev.JobSubmitted("running", asks(2), "other", 0.0, 0.0),
    "the submission of a job that waits, unchanged": ev.JobSubmitted("waiting", asks(2), "q", 0.0, 1000.0),
    "the adoption of a job that runs": ev.JobAdopted("running", asks(), "q", 0.0, _PLACE, Status.SAVING),
}


@pytest.mark.parametrize("event", NOTHING.values(), ids=NOTHING.keys())
def test_nothing_changes(event: ev.Event) -> None:
    world = World(node("n", 8, 8))
    world.submit("running")
    world.handle(ev.PhaseEntered("running", Status.TRAINING))
    world.submit("launching")
    world.submit("waiting", request=asks(2))

    def books() -> object:
        jobs = world.state.jobs.values()
        return [(job.id, job.request, job.queue, job.status, job.placement, job.due_at, job.hold) for job in jobs]

    before = books()
    assert world.handle(event) == []
    assert books() == before


def test_phases_are_followed_and_may_begin_again() -> None:
    world = World(node("n", 8))
    world.submit("a")
    for status in (Status.PREPARING, Status.TRAINING, Status.SAVING, Status.PREPARING):
        assert world.handle(ev.PhaseEntered("a", status)) == []
        assert world.state.jobs["a"].status is status


def test_a_job_that_ended_may_be_submitted_again() -> None:
    world = World(node("n", 8))
    world.submit("a")
    world.end("a")
    world.submit("a")
    assert world.launched == ["a", "a"]


def test_the_worker_goes_on_when_its_clock_is_put_back() -> None:
    world = World(node("n", 8))
    world.submit("a", due=0.0)
    world.now -= 900
    world.submit("b", due=0.0)
    world.end("a")
    assert world.launched == ["a", "b"]
