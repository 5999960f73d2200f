"""What a world that can stop jobs changes: nothing for jobs that may not be stopped, and room for the urgent by others.

The first test is the contract of the live setting ``preemption``: the same events, jobs that may not be stopped, once
in a world that stops nobody and once in one that could, and the instructions must be the same, one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Placement, Queue, Quotas
from prefect_gpu.scheduling.model.instructions import Instruction, Launch, Preempt, SetCores
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.preemption.minimum_runtime import PREPARES_S, left_alone_until
from prefect_gpu.scheduling.profiles import get_profile
from prefect_gpu.scheduling.profiles.adaptive import MOST_LATE
from tests.scheduling.kinds import KINDS
from tests.scheduling.test_every_profile import NO_SHRINKING, Outside, estimates, job_ids, requests, steps
from tests.scheduling.world import GIB, World, asks, node
from tests.support import examples

LIVE = Abilities(Preemption.GRACEFUL, gates=True, cores=True, shares=True, finishes=True)
"""What the live worker can do."""

URGENT, USUAL = Queue("urgent", priority=1), Queue("usual", priority=2)

worlds = st.builds(Abilities, gates=st.booleans(), cores=st.booleans(), shares=st.booleans(), finishes=st.booleans())
queue_ids = st.sampled_from(["urgent", "usual", "unknown"])
firm = requests.map(lambda one: replace(one, preemptible=False))
flows = st.builds(Request, gpus=st.just(0), cpus=st.integers(1, 4))
more_steps = st.one_of(
    steps.filter(lambda one: one[0] != "submit"),
    st.tuples(st.just("submit to"), queue_ids, job_ids, firm | flows, estimates),
    st.tuples(st.just("submit to"), queue_ids, job_ids, firm | flows, estimates),
    st.tuples(st.just("submit to"), queue_ids, job_ids, flows, estimates),
    st.tuples(st.just("estimate"), job_ids, estimates),
    st.tuples(st.just("speed"), st.integers(0, 8), st.floats(0.1, 100.0)),
    st.tuples(st.just("exhausted"), st.integers(0, 8)),
    st.tuples(st.just("found stopped"), st.integers(0, 8)),
    st.tuples(st.just("limits"), st.none() | st.integers(1, 6), st.booleans()),
    st.tuples(st.just("wait"), st.just(301.0)),  # longer than the patience
    st.tuples(st.just("together"), st.integers(0, 8), st.integers(0, 8)),
)


class Twins(Outside):
    """Two schedulers that are told the same: one in a world that stops nobody, one in a world that could."""

    def __init__(self, profile: str, able: Abilities) -> None:
        self.other = Scheduler(profile, replace(able, preemption=Preemption.GRACEFUL))
        super().__init__(profile, able)

    def send(self, event: ev.Event) -> None:
        """Send an event to both, and compare what comes back, and when they want to be woken."""
        super().send(event)
        said = self.other.handle(event, self.now)
        assert said == self.said[-1], event
        assert self.other.next_due() == self.scheduler.next_due(), event
        self.other.state.check_invariants()

    def step(self, what: tuple[Any, ...]) -> None:
        """One thing happens."""
        match what:
            case ("submit to", queue, job, request, estimate):
                if job not in self.running:
                    self.requests[job] = request
                self.send(ev.JobSubmitted(job, request, queue, self.now, self.now, "", estimate))
            case ("estimate", job, estimate):
                self.send(ev.JobEstimated(job, estimate))
            case ("limits", most, paused):
                self.send(ev.QuotasChanged(Quotas((URGENT, replace(USUAL, paused=paused)), pool_limit=most)))
            case ("speed", number, speed):
                self.about_one(number, lambda job: ev.SpeedMeasured(job, speed))
            case ("exhausted", number):
                job = self.some(number, self.running)
                if job is not None:
                    found = self.scheduler.state.jobs[job]
                    self.carry_out_memory(job, found.request)
            case ("found stopped", number):
                job = self.some(number, self.running)
                if job is not None:
                    del self.running[job]
                    self.gated.discard(job)
                    self.send(ev.JobStopped(job))
            case ("together", one, other):
                jobs = {self.some(one, self.running), self.some(other, self.running)} - {None}
                for job in jobs:
                    del self.running[job], self.requests[job]  # type: ignore[arg-type]
                    self.gated.discard(job)  # type: ignore[arg-type]
                self.send(ev.Together(tuple(ev.JobEnded(job, "completed") for job in sorted(jobs))))  # type: ignore[type-var, arg-type]
            case _:
                super().step(what)

    def about_one(self, number: int, event: Any) -> None:
        """Something is measured of a running job."""
        job = self.some(number, self.running)
        if job is not None:
            self.send(event(job))

    def carry_out_memory(self, job: str, request: Request) -> None:
        """A sharing job needs its devices alone; its placement changes by that event and by no instruction."""
        if request.shareable and not self.running[job].others:
            state, place = self.scheduler.state, self.running[job]
            sizes = [state.device(device).memory_bytes for device in place.all_devices]
            self.running[job] = replace(place, memory_bytes=min(sizes, default=place.memory_bytes), shared=False)
            self.requests[job] = replace(request, exclusive=True)
        self.send(ev.MemoryExhausted(job))


def play(profile: str, able: Abilities, happenings: list[tuple[Any, ...]]) -> None:
    note(f"profile {profile}")  # the last of them is the one that fails
    twins = Twins(profile, able)
    twins.send(ev.QuotasChanged(Quotas((URGENT, USUAL))))
    for what in happenings:
        twins.step(what)


@settings(max_examples=examples(1.5), suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(worlds, st.lists(more_steps, min_size=8, max_size=50))
def test_for_jobs_that_may_not_be_stopped_a_world_that_could_stop_them_is_like_one_that_cannot(
    able: Abilities, happenings: list[tuple[Any, ...]]
) -> None:
    play("adaptive", able, happenings)


@settings(max_examples=examples(0.25), suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(worlds, st.lists(more_steps, min_size=8, max_size=50))
def test_and_so_it_is_under_every_other_profile(able: Abilities, happenings: list[tuple[Any, ...]]) -> None:
    for profile in sorted(KINDS.keys() - {"adaptive"}):
        play(profile, able, happenings)


one_gpu = st.builds(Request, cpus=st.none() | st.integers(1, 4), category=st.sampled_from([None, "cv"]))
busy_steps = st.one_of(
    st.tuples(st.just("submit to"), queue_ids, job_ids, one_gpu, st.just(Estimate(service_s=100.0))),
    st.tuples(st.just("submit to"), queue_ids, job_ids, flows, st.just(Estimate())),
    st.tuples(st.just("train"), st.integers(0, 8)),
    st.tuples(st.just("use"), st.integers(0, 8), st.floats(0, 1)),
    st.tuples(st.just("speed"), st.integers(0, 8), st.floats(0.1, 100.0)),
    st.tuples(st.just("end"), st.integers(0, 8)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 100.0, 301.0])),
    st.tuples(st.just("ring")),
)


@settings(max_examples=examples(1.5), deadline=None, suppress_health_check=list(HealthCheck), phases=NO_SHRINKING)
@given(st.lists(one_gpu, min_size=3, max_size=5), st.lists(busy_steps, min_size=8, max_size=40))
def test_and_so_it_is_on_a_full_node_whose_cores_are_tuned_and_lent(
    first: list[Request], happenings: list[tuple[Any, ...]]
) -> None:
    twins = Twins("adaptive", replace(LIVE, preemption=Preemption.NONE))
    twins.step(("nodes", "a"))
    for number, request in enumerate(first):
        twins.step(("submit to", "usual", f"first-{number}", request, Estimate(service_s=50.0)))
        twins.step(("train", number))
    for what in happenings:
        twins.step(what)


# -- jobs that may be stopped ---------------------------------------------------------------------------------------


STOPS = Request(preemptible=True)


def live(*sizes: float, cpus: int = 8) -> World:
    """A pool as the live worker has it by default, with an urgent queue."""
    world = World(node("n", *sizes, cpus=cpus), profile="adaptive", abilities=LIVE)
    world.limit(URGENT, USUAL)
    return world


def test_an_urgent_run_gets_its_device_from_one_that_may_be_stopped_and_from_no_other() -> None:
    world = live(8, 8, 8)
    world.submit("firm", "other", queue="usual")
    world.submit("stops", request=STOPS, queue="usual")
    world.train("firm", "other", "stops")
    place = world.places["stops"]
    said = world.submit("first", "second", queue="urgent")
    assert world.stopped == ["stops"] and world.places["first"] == place
    assert [one.job for one in said if isinstance(one, Launch)] == ["first"]
    assert world.held("second") == ["devices"]


def test_an_urgent_run_is_not_kept_from_its_device_by_one_of_its_own_queue() -> None:
    world = live(8, 8)
    world.submit("usual", request=STOPS, queue="usual", service_s=50.0)
    world.submit("urgent", request=STOPS, queue="urgent", service_s=1000.0)  # it ends last, and may not be stopped for
    world.train("usual", "urgent")
    world.submit("more", queue="urgent", service_s=900.0)
    assert world.stopped == ["usual"] and "more" in world.places


def test_nobody_is_stopped_in_vain() -> None:
    world = live(8)
    world.submit("firm", request=asks(gib=4, shares=True), queue="usual")
    world.submit("stops", request=replace(asks(gib=4, shares=True), preemptible=True), queue="usual")
    assert world.places == {"firm": "n0", "stops": "n0"}
    world.train("firm", "stops")
    world.submit("alone", queue="urgent")
    assert not world.stopped, "its company would still be on the device"
    world.submit("small", request=asks(gib=4, shares=True), queue="urgent")
    assert world.stopped == ["stops"] and world.places == {"firm": "n0", "small": "n0"}


def test_a_run_that_fits_nowhere_has_devices_kept_for_it_though_others_may_be_stopped() -> None:
    world = live(8, 8)
    world.submit("a", request=STOPS, queue="usual")
    world.submit("b", queue="usual")
    world.train("a", "b")
    world.submit("large", request=Request(gpus=2), queue="usual", service_s=100.0)
    # Four devices are asked for and two are there: with its share alone it would take 200 s.
    late_s = MOST_LATE * 200.0
    assert late_s > world.scheduler.profile.patience_s
    world.wait(late_s - 1.0)
    assert not world.state.jobs["large"].impatient
    world.wait(1.0)
    assert world.state.jobs["large"].impatient and not world.stopped, "patience stops nobody"
    world.end("a")
    world.submit("small", queue="usual")
    assert world.held("small") == ["reserved"]
    world.end("b")
    assert world.places["large"] == "n0 n1"


def test_whoever_gave_way_has_patience_again() -> None:
    world = World(node("n", 8), profile=replace(get_profile("adaptive"), most_late=0.0), abilities=LIVE)
    world.limit(URGENT, USUAL)
    world.submit("stops", request=STOPS, queue="usual")
    world.train("stops")
    world.wait(10_000.0)
    world.submit("urgent", queue="urgent")
    world.handle(ev.JobStopped("stops"))
    patience_s = world.scheduler.profile.patience_s
    world.wait(patience_s - 1.0)
    assert not world.state.jobs["stops"].impatient
    world.wait(1.0)
    assert world.state.jobs["stops"].impatient


def test_whoever_was_stopped_is_left_alone_until_it_has_trained_for_a_while() -> None:
    world = live(8)
    world.submit("stops", request=STOPS, queue="usual")
    world.wait(10.0)
    world.train("stops")
    world.submit("first", queue="urgent")  # for an urgent run, at once; but not again and again
    assert world.stopped == ["stops"]
    world.handle(ev.JobStopped("stops"))
    world.end("first")
    assert "stops" in world.places
    world.submit("second", queue="urgent")
    world.wait(10.0)
    assert world.stopped == ["stops"], "it does not even train yet"
    world.train("stops")
    due = world.scheduler.next_due()
    assert due == world.now + 30.0, "its launch took ten seconds"
    world.now = due - 1.0
    world.wait(0.0)
    assert world.stopped == ["stops"]
    world.wait(1.0)
    assert world.stopped == ["stops", "stops"] and "second" in world.places


def test_a_shorter_run_of_the_same_queue_has_to_wait_for_that_from_the_first() -> None:
    world = live(8)
    world.submit("long", request=STOPS, queue="usual", service_s=10_000.0)
    world.submit("short", queue="usual", service_s=100.0)
    world.wait(PREPARES_S / 2)
    assert not world.stopped
    world.train("long")
    assert left_alone_until(world.state.jobs["long"]) == world.now + 90.0
    world.wait(90.0)
    assert world.stopped == ["long"] and "short" in world.places


def test_a_run_whose_launch_is_expected_to_take_long_is_left_alone_for_longer() -> None:
    world = live(8)
    world.submit("long", request=STOPS, queue="usual", estimate=Estimate(10_000.0, launching_s=80.0))
    world.submit("short", queue="usual", service_s=100.0)
    world.wait(239.0)
    assert not world.stopped
    world.wait(1.0)
    assert world.stopped == ["long"]


def test_a_run_that_is_not_stopped_may_be_prepared_behind_one_that_is_and_keeps_it_from_being_stopped() -> None:
    world = live(8)
    world.submit("stops", request=STOPS, queue="usual", service_s=100.0)
    world.train("stops")
    world.submit("firm", queue="usual", estimate=Estimate(100.0, launching_s=20.0))
    said = world.wait(96.0)
    assert [(one.job, one.behind) for one in said if isinstance(one, Launch)] == [("firm", "stops")]
    world.submit("urgent", queue="urgent")
    assert not world.stopped
    world.end("stops")
    assert world.places == {"firm": "n0"}


def cores(world: World, job: str) -> tuple[int, ...]:
    place = world.state.jobs[job].placement
    return place.cpus if place is not None else ()


@pytest.mark.parametrize("training", [STOPS, Request()])
@pytest.mark.parametrize("flow_stops", [True, False])
def test_cores_are_lent_and_given_back_whoever_may_be_stopped(training: Request, flow_stops: bool) -> None:
    world = live(8, cpus=4)
    world.submit("training", request=training, queue="usual")
    world.submit("firm", request=Request(0, cpus=1), queue="usual")  # it may not be stopped: no arrays like CODA's
    world.train("training")
    before = cores(world, "training")
    world.submit("flow", request=Request(0, cpus=2, preemptible=flow_stops), queue="usual")
    lent = cores(world, "flow")
    assert len(lent) == 2 and not set(lent) & set(cores(world, "training"))
    assert not world.stopped
    world.end("flow")
    assert len(cores(world, "training")) > len(before) - 2
    world.end("firm")
    assert cores(world, "training") == (0, 1, 2, 3)


def test_no_flow_is_stopped_for_cores_where_nobody_says_whose_the_runs_are() -> None:
    world = live(8, cpus=4)
    world.submit("flow", request=Request(0, cpus=1, preemptible=True), queue="usual")
    world.submit("training", request=STOPS, queue="usual")
    world.train("flow", "training")
    world.submit("urgent", request=STOPS, queue="urgent")
    assert world.stopped == ["training"] and world.places["urgent"] == "n0"


def test_an_urgent_run_goes_first_even_where_all_jobs_are_else_such_as_the_arrays_of_coda_assume() -> None:
    world = live(8, cpus=4)
    stops = replace(STOPS, owner="ada")
    world.submit("training", request=stops, queue="usual")
    world.submit("flow", request=Request(0, cpus=1, preemptible=True, owner="bob"), queue="usual")
    world.train("training", "flow")
    world.submit("urgent", request=stops, queue="urgent")
    assert world.stopped == ["training"] and world.places["urgent"] == "n0"


@pytest.mark.parametrize(("beside", "tuned"), [(STOPS, True), (Request(), False)])
def test_a_number_of_cores_that_was_asked_for_is_kept_to_beside_runs_that_may_not_be_stopped(
    beside: Request, tuned: bool
) -> None:
    world = live(8, 8, cpus=16)
    world.submit("asks", request=Request(cpus=6, preemptible=True), queue="usual")
    world.submit("beside", request=beside, queue="usual")
    world.train("asks", "beside")
    said: list[Instruction] = []
    for _ in range(4):
        world.now += 90.0
        said += world.handle(ev.UtilisationMeasured("asks", 0.5))
    assert any(isinstance(one, SetCores) and one.job == "asks" for one in said) is tuned


def test_a_found_run_of_which_the_launch_was_not_seen_is_not_spared() -> None:
    world = live(8)
    world.adopt("found", Placement("n", ("n0",), (0,), 8 * GIB), STOPS, "usual")
    said = world.submit("urgent", queue="urgent")
    assert [one.job for one in said if isinstance(one, Preempt)] == ["found"]
    assert world.state.jobs["found"].status is Status.STOPPING
