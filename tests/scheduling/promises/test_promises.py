"""A deadline is promised or refused at once, later promises break none, and runs end when their time is over."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement
from prefect_gpu.scheduling.model.instructions import AtRisk, Expire, Hold, Instruction, Promise, Refuse
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request, Status
from prefect_gpu.scheduling.model.kinds import Wants
from prefect_gpu.scheduling.model.shares import Share, Shares
from prefect_gpu.scheduling.promises.gantt import Asked, Gantt, Planned
from prefect_gpu.scheduling.promises.reach import Reach, thought
from prefect_gpu.scheduling.state.lengths import Lengths
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World as Simulated
from tests.scheduling.world import GIB, World, node
from tests.support import examples

STOPS = Abilities(Preemption.GRACEFUL)
MAY_STOP = Request(preemptible=True)


def by(moment: float, gpus: int = 1, **more: object) -> Request:
    return Request(gpus, deadline_at=moment, promise=True, **more)  # type: ignore[arg-type]


def exactly(service_s: float) -> Estimate:
    return Estimate(service_s=service_s, service_high_s=service_s)


def pool(*memory_gib: float) -> World:
    return World(node("n", *memory_gib), profile="adaptive", abilities=STOPS)


def test_the_answer_comes_first_and_a_refused_job_leaves_nothing_behind() -> None:
    world = pool(8)
    [promised, *_] = world.submit("a", request=by(1200.0), estimate=exactly(100.0))
    assert isinstance(promised, Promise) and promised.probability == 0.9
    world.train("a")
    [refused] = world.submit("b", request=by(1150.0), estimate=exactly(100.0))
    assert isinstance(refused, Refuse) and "b" not in world.state.jobs
    assert refused.earliest is not None and refused.earliest > 1150.0
    [promised, *_] = world.submit("b", request=by(refused.earliest), estimate=exactly(100.0))
    assert isinstance(promised, Promise), "the date that was offered is promised if it is asked for"


def test_the_unpromised_run_until_the_devices_are_needed_and_carry_on_after() -> None:
    world = pool(8)
    world.submit("long", request=MAY_STOP, service_s=10_000.0)
    world.train("long")
    world.submit("a", request=by(1500.0), estimate=exactly(100.0))
    assert world.places == {"long": "n0"} and world.scheduler.next_due() == 1398.0
    world.wait(398.0)
    assert world.stopped == ["long"] and world.places == {"a": "n0"}
    world.handle(ev.JobStopped("long"))
    world.train("a")
    world.wait(100.0)
    world.end("a")
    assert world.places == {"long": "n0"} and world.state.learned.reach.kept == 1


def test_a_run_that_cannot_be_stopped_waits_for_a_place_where_it_breaks_no_promise() -> None:
    world = pool(8, 8)
    world.submit("a", "b", request=by(1300.0), estimate=exactly(200.0))
    world.submit("c", request=by(1600.0), estimate=exactly(350.0))
    world.train("a", "b")
    world.wait(200.0)
    world.end("a", "b")
    assert "c" in world.places, "nobody else wanted the devices"
    world.submit("d", request=by(1900.0, gpus=1), estimate=exactly(500.0))
    world.submit("firm", estimate=Estimate(service_s=1_000.0, service_high_s=1_000.0))
    assert "firm" not in world.places or "d" in world.places


def test_a_promised_gang_begins_where_there_is_room_for_a_part_of_it_on_each_node() -> None:
    world = World(node("a", 8, 8), node("b", 8, 8), profile="adaptive", abilities=STOPS)
    for name in ("a", "b"):
        place = Placement(name, (f"{name}0",), ())
        world.handle(ev.JobAdopted(f"firm-{name}", Request(time_limit_s=9_000.0), "q", 0.0, place, Status.TRAINING))
    [promised, *_] = world.submit("gang", request=by(1500.0, workers=2), estimate=exactly(100.0))
    assert isinstance(promised, Promise) and world.places["gang"] == "a1 b1"


def test_who_cannot_be_stopped_joins_nobody_on_a_device_that_is_promised() -> None:
    world, part = pool(8), {"gpu_memory_bytes": 2 * GIB, "exclusive": False}
    world.submit("short", request=Request(time_limit_s=100.0, **part), estimate=exactly(90.0))  # type: ignore[arg-type]
    world.train("short")
    [promised, *_] = world.submit("kept", request=by(1400.0), estimate=exactly(200.0))
    assert isinstance(promised, Promise)
    for name, limit_s in (("long", 5_000.0), ("brief", 90.0)):
        world.submit(name, request=Request(time_limit_s=limit_s, **part), estimate=exactly(0.9 * limit_s))  # type: ignore[arg-type]
    assert world.places == {"short": "n0", "brief": "n0"}, "the device is promised from when the short one must end"


def test_who_cannot_be_stopped_is_prepared_on_no_device_that_is_promised() -> None:
    gates = Abilities(Preemption.GRACEFUL, gates=True)
    world = World(node("n", 8), profile="adaptive", abilities=gates)
    world.submit("first", request=Request(time_limit_s=110.0), estimate=Estimate(100.0, launching_s=6.0))
    world.train("first")
    [promised, *_] = world.submit("kept", request=by(1400.0, time_limit_s=200.0))
    assert isinstance(promised, Promise)
    firm = Request(time_limit_s=5_000.0, priority=9)
    world.submit("firm", request=firm, estimate=Estimate(4_000.0, launching_s=6.0))
    world.wait(97.0)
    assert "firm" not in world.places


def mixed(**more: Any) -> World:
    """A node with two devices of one kind and two of another, all of one size."""
    devices = tuple(Device(f"n{number}", "big" if number < 2 else "small", 8 * GIB) for number in range(4))
    return World(Node("n", devices, tuple(range(8))), profile="adaptive", abilities=STOPS, **more)


def test_a_promise_counts_only_devices_of_the_kinds_that_are_wanted() -> None:
    world, big = mixed(), Wants(kinds=("big",))
    world.submit("firm", request=Request(2, wants=big, time_limit_s=5_000.0), estimate=exactly(4_000.0))
    world.train("firm")
    [refused] = world.submit("a", request=by(1500.0, wants=big), estimate=exactly(100.0))
    assert isinstance(refused, Refuse) and refused.earliest is not None and refused.earliest > 5_000.0
    [promised, *_] = world.submit("b", request=by(1500.0, gpus=2), estimate=exactly(100.0))
    assert isinstance(promised, Promise), "any kind will do"


def test_what_is_promised_of_one_kind_keeps_nobody_from_another() -> None:
    world = mixed()
    world.submit("a", request=by(1150.0, gpus=2, wants=Wants(kinds=("big",))), estimate=exactly(100.0))
    world.submit("b", request=by(1160.0, gpus=2, wants=Wants(kinds=("big",))), estimate=exactly(40.0))
    world.submit("firm", request=Request(2), estimate=exactly(4_000.0))
    assert world.places["firm"] == "n2 n3"


def test_a_promise_may_be_kept_with_devices_of_two_kinds_of_a_node() -> None:
    world = mixed()
    [promised, *_] = world.submit("a", request=by(1500.0, gpus=4), estimate=exactly(100.0))
    assert isinstance(promised, Promise) and world.places["a"] == "n0 n1 n2 n3"
    [promised, *_] = world.submit("b", request=by(1500.0, gpus=3), estimate=exactly(100.0))
    assert isinstance(promised, Promise)
    world.train("a")
    world.wait(100.0)
    world.end("a")
    assert "b" in world.places


def test_only_who_has_what_was_promised_makes_room_for_it() -> None:
    world = mixed()
    for name, count, kind in (("wide", 2, "big"), ("other", 1, "small"), ("last", 1, "small")):
        request = replace(MAY_STOP, gpus=count, wants=Wants(kinds=(kind,)))
        world.submit(name, request=request, service_s=10_000.0)
        world.train(name)
        world.wait(1.0)
    world.submit("a", request=by(1500.0, wants=Wants(kinds=("big",))), estimate=exactly(100.0))
    world.wait(1398.0 - world.now)
    assert world.stopped == ["wide"]


def test_who_asks_for_another_deadline_while_it_waits_is_planned_anew() -> None:
    world = pool(8, 8)
    world.submit("long", "longer", request=MAY_STOP, service_s=10_000.0)
    world.train("long", "longer")
    world.submit("a", request=by(1500.0), estimate=exactly(100.0))
    world.submit("a", request=by(1300.0, gpus=2), estimate=exactly(100.0))
    assert world.scheduler.next_due() == 1198.0
    world.submit("a", request=Request(2), estimate=exactly(100.0))
    assert not world.state.promises.plans and not world.state.promises.jobs


def test_a_plan_on_a_node_that_is_gone_is_made_again_at_once() -> None:
    world = World(node("a", 8), node("b", 8), profile="adaptive", abilities=STOPS)
    world.submit("long", "longer", request=MAY_STOP, service_s=10_000.0)
    world.train("long", "longer")
    world.submit("kept", request=by(1500.0), estimate=exactly(100.0))
    world.submit("also", request=by(1500.0), estimate=exactly(100.0))
    world.handle(ev.NodesChanged((node("a", 8),)))
    world.handle(ev.JobStopped("longer"))
    assert sorted(world.state.promises.plans[name].start for name in ("kept", "also")) == [1298.0, 1398.0]


@pytest.mark.parametrize("promise", [True, False])
def test_what_the_limit_of_an_owner_never_allows_is_not_promised(promise: bool) -> None:
    world = pool(8, 8, 8)
    shares = Shares(3600.0, (Share("team", limit=2), Share("ada", parent="team")))
    world.handle(ev.QuotasChanged(replace(world.state.quotas, shares=shares)))
    request = Request(3, owner="ada", deadline_at=9_000.0, promise=promise)
    [said, *_] = world.submit("a", request=request, estimate=exactly(100.0))
    assert isinstance(said, Refuse if promise else Hold)
    assert said.reason == "the limit of team is 2 devices, and this run needs 3" and not world.state.promises.jobs
    asked = world.scheduler.could_promise(Job("b", request, "q", 0.0, 0.0, estimate=exactly(100.0)), world.now)
    assert (asked.planned, asked.reason) == (None, said.reason), "whoever only asks is told the same"


def test_what_nobody_knows_is_not_promised_but_a_time_limit_will_do() -> None:
    world = pool(8)
    [refused] = world.submit("a", request=by(5000.0))
    assert isinstance(refused, Refuse) and "time_limit" in refused.reason and refused.earliest is None
    [promised, *_] = world.submit("a", request=by(5000.0, time_limit_s=600.0))
    assert isinstance(promised, Promise)


def test_a_profile_that_keeps_no_promises_says_so() -> None:
    world = World(node("n", 8), profile="fifo", abilities=STOPS)
    [refused] = world.submit("a", request=by(5000.0), estimate=exactly(1.0))
    assert isinstance(refused, Refuse) and "adaptive" in refused.reason


def test_best_effort_is_never_refused_and_gives_way_to_promises() -> None:
    world = pool(8)
    world.submit("a", request=Request(deadline_at=1110.0), estimate=exactly(100.0))
    assert world.places == {"a": "n0"} and not any(isinstance(said, Promise | Refuse) for said in world.instructions)
    world.submit("b", request=Request(deadline_at=1050.0), estimate=exactly(100.0))
    assert "b" in world.state.jobs, "its deadline is impossible, and it waits all the same"


def test_a_promise_of_an_earlier_worker_is_kept_without_a_question() -> None:
    world = pool(8)
    request = by(1050.0)  # which nobody would promise now
    said = world.handle(ev.JobSubmitted("a", request, "q", 0.0, world.now, "a", exactly(100.0), promised=0.9))
    assert not any(isinstance(one, Promise | Refuse) for one in said) and world.places == {"a": "n0"}
    assert world.state.jobs["a"].promised == 0.9


def test_who_is_late_is_told_once() -> None:
    world = pool(8)
    world.submit("a", request=by(1200.0), estimate=exactly(100.0))
    world.train("a")
    world.wait(150.0)
    said = [one for _ in range(3) for one in world.wait(60.0)]
    risks = [one for one in world.instructions if isinstance(one, AtRisk)]
    assert [one.job for one in risks] == ["a"] and said is not None
    world.end("a")
    assert (world.state.learned.reach.kept, world.state.learned.reach.broken) == (0, 1)


@pytest.mark.parametrize("profile", ["fifo", "adaptive"])
def test_a_time_limit_counts_the_time_on_devices_alone(profile: str) -> None:
    world = World(node("n", 8), profile=profile, abilities=STOPS)
    world.submit("a", request=Request(preemptible=True, time_limit_s=100.0), service_s=500.0)
    world.train("a")
    world.wait(60.0)
    world.handle(ev.LeaveAsked("a", "its device is dusty"))
    world.wait(1000.0)
    world.handle(ev.JobStopped("a"))
    world.train("a")
    assert world.scheduler.next_due() is not None
    assert not any(isinstance(one, Expire) for one in world.wait(39.0))
    said = [one for _ in range(3) for one in world.wait(1.0)]
    assert [one.job for one in said if isinstance(one, Expire)] == ["a"], "once"
    assert world.places == {"a": "n0"}, "it has its device until it has ended"


def test_an_estimate_that_is_far_from_what_the_deadline_says_is_less_sure_than_it_says() -> None:
    """Whoever sets a deadline knows the job: here others needed about half of the time up to theirs."""
    lengths, reach = Lengths(), Reach()
    for took_s in (400.0, 600.0) * 10:
        reach.needed(1000.0, took_s)

    def median_s(service_s: float, measured: bool = False) -> float:
        estimate = Estimate(service_s=service_s, service_high_s=1.2 * service_s, measured=measured)
        job = Job("a", by(1000.0), "q", 0.0, 0.0, estimate=estimate)
        found = thought(job, lengths, reach)
        assert found is not None
        return math.exp(found[0])

    assert abs(median_s(450.0) - 450.0) < 10.0, "it is surer than the deadline"
    assert 400.0 < median_s(50.0) < 500.0, "nine times too short: the deadline counts"
    assert median_s(50.0, measured=True) < 100.0, "it has shown it itself"


def test_the_reach_finds_the_part_that_is_to_be_kept() -> None:
    reach = Reach()
    for number in range(2000):  # of truths that lie evenly between none and two deviations
        reach.came_true((number * 0.618034) % 1.0 * 2.0 <= reach.deviations)
    assert 0.87 <= reach.kept / 2000 <= 0.95 and 1.6 <= reach.deviations <= 2.0


lengths = st.integers(1, 50) | st.floats(0.01, 50.0)  # whose sums are not always what they were made from
spans = st.tuples(lengths, st.integers(1, 3), st.integers(1, 200) | st.floats(0.01, 200.0))


@settings(max_examples=examples(1), deadline=None)
@given(st.lists(spans, max_size=12), spans)
def test_the_latest_plan_fits_and_starts_no_earlier_than_the_earliest(
    taken: list[tuple[float, int, float]], wanted: tuple[float, int, float]
) -> None:
    gantt = Gantt({"a": 4, "b": 2}, now=0.0)
    for lasts, devices, last in taken:
        asked = Asked(1, devices, float(lasts), {"a": 4, "b": 2})
        planned = gantt.latest(asked, float(last))
        if planned is not None:
            gantt.take(planned)
    assert not gantt.overfull()
    lasts, devices, last = wanted
    asked = Asked(1, devices, float(lasts), {"a": 4, "b": 2})
    first, latest = gantt.earliest(asked), gantt.latest(asked, float(last))
    assert first is not None
    if abs(first.end - last) > 1e-6:
        assert (latest is None) == (first.end > last), "what fits at all in time is found"
    for planned in (first, latest):
        if planned is not None:
            gantt.take(planned)
            assert not gantt.overfull() and planned.start >= 0.0
            gantt.take(planned, -1)
    assert gantt.earliest(asked) == first


arrivals = st.lists(
    st.tuples(
        st.integers(0, 60) | st.floats(0.0, 60.0),  # after the one before
        st.integers(1, 120) | st.floats(0.1, 120.0),  # how long it takes
        st.sampled_from([1, 1, 1, 2, 4]),  # devices
        st.floats(1.0, 4.0),  # how much time it has
        st.sampled_from(["promise", "promise", "effort", "stops", "firm"]),
    ),
    min_size=1,
    max_size=14,
)


class Noting(Simulated):
    """Notes what is said, and looks whether plans are possible at all times."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.said: list[Instruction] = []

    def _carry_out(self, instruction: Instruction) -> None:
        self.said.append(instruction)
        super()._carry_out(instruction)

    def _decide(self) -> None:
        super()._decide()
        book = self.scheduler.state.promises
        self.scheduler.state.check_invariants()
        assert not book._gantt().overfull(), "all plans together need no more than there is"
        assert not any(isinstance(one, AtRisk) for one in self.said), "with true durations, no promise is at risk"


@settings(max_examples=examples(1), deadline=None)
@given(arrivals)
def test_with_true_durations_all_promises_are_kept_whatever_is_promised_later(
    jobs: list[tuple[float, float, int, float, str]],
) -> None:
    models, due, now = [], {}, 0.0
    for number, (gap, lasts, gpus, slack, kind) in enumerate(jobs):
        now += gap
        name = f"j{number}"
        request = Request(gpus, preemptible=kind == "stops")
        if kind in ("promise", "effort"):
            due[name] = now + slack * lasts + 3.0
            request = Request(gpus, deadline_at=due[name], promise=kind == "promise")
        models.append(JobModel(name, now, float(lasts), request, estimate=exactly(float(lasts))))

    def play() -> Noting:
        world = Noting([node("a", 8, 8, 8, 8), node("b", 8, 8)], models, "adaptive", abilities=STOPS)
        world.run()
        return world

    world = play()
    ends = {one.job: one.end_s for one in world.results.outcomes}
    for said in world.said:
        if isinstance(said, Promise):
            end = ends[said.job]
            assert end is not None and end <= due[said.job], f"{said.job} was promised {due[said.job]}"
    assert not world.results.unfinished, "nobody waits for ever for the sake of promises"
    assert play().said == world.said, "the same events, the same instructions"


def test_a_plan_of_several_nodes_is_whole() -> None:
    gantt = Gantt({"a": 4, "b": 4}, now=0.0)
    gantt.take(Planned(0.0, 10.0, {"a": 4}))
    asked = Asked(2, 4, 5.0, {"a": 4, "b": 4})
    first = gantt.earliest(asked)
    assert first is not None and first.start == 10.0 and first.devices == {"a": 4, "b": 4}
    assert gantt.latest(asked, 14.0) is None and gantt.latest(asked, 15.0) == first


def test_a_group_that_is_overfull_takes_nothing_from_others_of_its_node() -> None:
    """As of a node with two kinds of device, of which one has lost some that are given away."""
    gantt = Gantt({"a": 2, "b": 4, "c": 4}, now=0.0)
    gantt.take(Planned(0.0, 10.0, {"a": 6}))
    found = gantt.earliest(Asked(2, 4, 5.0, {"a": 2, "b": 4, "c": 4}, mixed=(("a", "b"),)))
    assert found == Planned(0.0, 5.0, {"b": 4, "c": 4})


def test_what_is_said_of_a_promise_is_what_came_of_the_last_ones() -> None:
    always, rarely = Reach(), Reach()
    assert always.probability == 0.9
    for number in range(300):
        always.came_true(True)
        rarely.remembered(100.0, 50.0, kept=number % 2 == 0)
    assert always.probability == 0.99 and 0.5 <= rarely.probability <= 0.55


def test_a_device_that_several_share_is_taken_once() -> None:
    world = pool(8, 8)
    world.submit("x")
    part = Request(gpu_memory_bytes=2 * GIB, exclusive=False)
    world.submit("a", "b", request=part, estimate=exactly(1000.0))
    assert world.places["a"] == world.places["b"] == "n1"
    world.end("x")
    [promised, *_] = world.submit("c", request=by(1200.0), estimate=exactly(100.0))
    assert isinstance(promised, Promise) and world.places["c"] == "n0"


def test_a_device_out_of_service_takes_nothing_from_those_that_are_left() -> None:
    world = pool(8, 8)
    world.submit("a", estimate=exactly(1000.0))
    assert world.places == {"a": "n0"}
    there = node("n", 8, 8)
    world.handle(ev.NodesChanged((replace(there, devices=there.devices[1:]),)))
    [promised, *_] = world.submit("b", request=by(1200.0), estimate=exactly(100.0))
    assert isinstance(promised, Promise) and world.places["b"] == "n1"


def test_a_promise_does_not_let_an_owner_exceed_its_limit() -> None:
    world = pool(8, 8)
    world.limit(shares=Shares(3600.0, (Share("ada", limit=1),)))
    world.submit("a", request=Request(owner="ada"), estimate=exactly(50.0))
    world.train("a")
    world.submit("b", request=by(1202.0, owner="ada"), estimate=exactly(100.0))
    world.wait(100.0)
    assert world.places == {"a": "n0"} and world.held("b") == ["share-limit"]
    world.end("a")
    assert world.places == {"b": "n0"}


@pytest.mark.parametrize("deadline_at", [1500.0, None])
def test_a_waiting_run_that_is_found_running_is_not_started_once_more_for_its_deadline(
    deadline_at: float | None,
) -> None:
    world = pool(8, 8)
    world.submit("x", "y", request=MAY_STOP)
    request = Request(deadline_at=1500.0)
    world.submit("a", request=request, estimate=exactly(100.0))
    world.end("y")
    world.handle(ev.LaunchFailed("a", "nobody answered", 1010.0))
    world.adopt("a", Placement("n", ("n1",), (), 8 * GIB), replace(request, deadline_at=deadline_at))
    for _ in range(6):
        world.wait(100.0)
    assert world.places == {"x": "n0", "a": "n1"} and world.launched.count("a") == 1


def test_of_a_node_with_devices_of_several_kinds_only_those_that_are_wanted_are_promised() -> None:
    there = [
        Node(name, tuple(Device(f"{name}{at}", kind, 8 * GIB) for at, kind in enumerate(("A100", "T4"))), (0, 1))
        for name in "ab"
    ]
    world = World(*there, profile="adaptive", abilities=STOPS)
    for kind in ("A100", "T4"):  # both of them on the same node
        world.submit(f"x{kind}", request=Request(wants=Wants(kinds=(kind,))), estimate=exactly(1000.0))
    assert world.places == {"xA100": "a0", "xT4": "a1"}
    asked = by(1500.0, workers=2, wants=Wants(kinds=("A100",)))
    [refused, *_] = world.submit("g", request=asked, estimate=exactly(100.0))
    assert isinstance(refused, Refuse)
    world.end("xA100")
    [promised, *_] = world.submit("g", request=asked, estimate=exactly(100.0))
    assert isinstance(promised, Promise)
