"""The forecast is what then happens, if the estimates are right; and looking ahead changes nothing."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefect_gpu.scheduling.forecast import Outlook, forecast
from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL, Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node, Queue
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.model.shares import Share, Shares
from prefect_gpu.scheduling.profiles import all_profiles
from prefect_gpu.scheduling.profiles.adaptive import MOST_LATE
from prefect_gpu.scheduling.state.learned import Learned
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World as Simulated
from tests.scheduling.test_every_profile import JOBS, Outside, abilities, steps
from tests.scheduling.world import World, asks, node
from tests.support import examples

FEW = settings(deadline=None, max_examples=examples(0.15), suppress_health_check=list(HealthCheck))


def on_fifo(*memory_gib: float) -> World:
    return World(node("n", *memory_gib), profile="fifo")


def spans(found: dict[str, Outlook]) -> dict[str, tuple[float | None, float | None]]:
    return {job: (outlook.start, outlook.end) for job, outlook in found.items()}


# -- what is expected, in tables --------------------------------------------------------------------------------------


def test_runs_follow_each_other_on_one_device() -> None:
    world = on_fifo(8)
    world.submit("a", "b", "c", estimate=Estimate(100.0, launching_s=5.0, saving_s=3.0))
    world.now += 5
    world.train("a")
    world.now += 40
    found = forecast(world.scheduler, world.now)
    assert spans(found) == {"a": (1000.0, 1108.0), "b": (1108.0, 1216.0), "c": (1216.0, 1324.0)}
    assert [found[job].ahead for job in "bc"] == [0, 1]
    assert found["b"].reason == world.reason("b")


def test_what_a_run_has_reported_counts_more_than_the_time_it_took() -> None:
    world = on_fifo(8)
    world.submit("a", "b", service_s=100.0)
    world.train("a")
    world.now += 50
    world.handle(ev.Progressed((("a", 10.0),)))
    assert spans(forecast(world.scheduler, world.now))["b"] == (1140.0, 1240.0)


def test_a_run_that_overruns_is_expected_to_go_on_for_as_long_again_as_it_is_over() -> None:
    world = on_fifo(8)
    world.submit("a", "b", service_s=100.0)
    world.train("a")
    world.now += 130
    assert spans(forecast(world.scheduler, world.now))["b"][0] == world.now + 30


def test_what_is_behind_a_run_of_unknown_length_is_unknown_and_says_so() -> None:
    world = on_fifo(8)
    world.submit("a")
    world.submit("b", "c", service_s=10.0)
    found = forecast(world.scheduler, world.now)
    assert spans(found) == {"a": (1000.0, None), "b": (None, None), "c": (None, None)}
    assert found["b"].reason == "the end of run a cannot be predicted"
    assert [found[job].ahead for job in "bc"] == [0, 1]


def test_another_device_serves_those_behind_a_run_of_unknown_length() -> None:
    world = on_fifo(8, 8)
    world.submit("a")
    world.submit("b", "c", service_s=10.0)
    assert spans(forecast(world.scheduler, world.now))["c"] == (1010.0, 1020.0)


def test_a_waiting_run_of_unknown_length_has_a_start_and_no_end() -> None:
    world = on_fifo(8)
    world.submit("a", service_s=10.0)
    world.submit("b")
    assert spans(forecast(world.scheduler, world.now))["b"] == (1010.0, None)


def test_limits_priorities_and_due_times_hold_in_the_future_too() -> None:
    world = on_fifo(8, 8)
    world.limit(Queue("low", priority=2), Queue("high", priority=1), Queue("shut", paused=True), worker_limit=1)
    world.submit("a", service_s=10.0, queue="low")
    world.submit("b", service_s=10.0, queue="low")
    world.submit("c", service_s=10.0, queue="high")
    world.submit("d", service_s=10.0, queue="shut")
    world.submit("e", service_s=10.0, queue="high", due=1500.0)
    found = forecast(world.scheduler, world.now)
    assert spans(found) == {
        "a": (1000.0, 1010.0),
        "c": (1010.0, 1020.0),
        "b": (1020.0, 1030.0),
        "e": (1500.0, 1510.0),
        "d": (None, None),
    }
    assert found["d"].reason == "the work queue 'shut' is paused"
    assert found["e"].reason == "it is not due yet"


def test_a_gang_waits_for_all_its_devices_and_runs_that_share_do_not_wait() -> None:
    world = on_fifo(8, 8)
    world.submit("a", service_s=10.0)
    world.submit("b", service_s=30.0, request=asks(gib=4, shares=True))
    world.submit("both", service_s=5.0, request=asks(gpus=2))
    world.submit("small", service_s=30.0, request=asks(gib=4, shares=True))
    assert spans(forecast(world.scheduler, world.now)) == {
        "a": (1000.0, 1010.0),
        "b": (1000.0, 1030.0),
        "both": (1030.0, 1035.0),
        "small": (1000.0, 1030.0),
    }


def test_only_the_first_are_played_and_the_rest_know_how_many_come_first() -> None:
    world = on_fifo(8)
    world.submit(*(f"job-{number}" for number in range(6)), service_s=10.0)
    found = forecast(world.scheduler, world.now, most=3)
    assert [found[f"job-{number}"].start for number in range(1, 6)] == [1010.0, 1020.0, 1030.0, None, None]
    assert found["job-5"] == Outlook(None, None, "more than 3 runs come first", 4)
    assert found["job-3"].first_at == world.now + 300.0, "five minutes of patience"


def test_a_waiting_run_knows_until_when_others_may_overtake_it() -> None:
    """Under `adaptive`, until it has been there for so many times as long as it takes with its share of the devices."""
    world = World(node("n", 8), profile="adaptive")
    world.submit("a", service_s=600.0)
    world.submit("b", service_s=600.0)
    world.submit("later", service_s=600.0, due=5000.0)
    found = forecast(world.scheduler, world.now)
    assert found["b"].first_at == world.now + MOST_LATE * 3 * 600.0, "a third of the device is its share"
    assert found["a"].first_at is None, "it runs"
    assert found["later"].first_at is None, "it is not due yet"


def test_whom_its_owners_limit_holds_back_others_may_overtake_for_as_long_as_it_does() -> None:
    world = World(node("n", 8, 8), profile="adaptive", shares=Shares(3600.0, (Share("ada", limit=1),)))
    world.submit("a", "b", service_s=600.0, request=Request(1, owner="ada"))
    assert forecast(world.scheduler, world.now)["b"].first_at is None


def test_what_no_node_can_hold_takes_no_place_in_the_queue() -> None:
    world = on_fifo(8)
    world.submit("a", service_s=10.0)
    world.submit("huge", service_s=10.0, request=asks(gpus=3))
    world.submit("b", service_s=10.0)
    found = forecast(world.scheduler, world.now)
    assert (found["b"].ahead, found["huge"].start) == (0, None)


def test_a_run_is_prepared_behind_the_one_before_it() -> None:
    world = World(node("n", 8), profile="adaptive", abilities=Abilities(gates=True))
    world.submit("a", "b", estimate=Estimate(100.0, launching_s=20.0, saving_s=10.0))
    world.now += 20
    world.train("a")
    found = forecast(world.scheduler, world.now)
    assert found["b"].start is not None and found["b"].start < found["a"].end - 10.0
    assert found["b"].end == found["a"].end - 10.0 + 110.0, "it trains as soon as the one before it saves"


def test_a_job_that_is_being_stopped_waits_again() -> None:
    world = World(node("n", 8), profile="srtf", abilities=Abilities(Preemption.GRACEFUL))
    stops = Request(preemptible=True)
    world.submit("long", service_s=1000.0, request=stops)
    world.train("long")
    world.submit("short", service_s=10.0, request=stops)
    assert world.state.jobs["long"].status is Status.STOPPING
    assert spans(forecast(world.scheduler, world.now))["long"] == (1010.0, 2010.0)


# -- what was learned -------------------------------------------------------------------------------------------------


def test_programs_that_were_found_incompatible_are_not_expected_to_start_beside_each_other() -> None:
    world = World(node("n", 8), profile="adaptive")
    world.handle(ev.CompanyLearned((("a", "b", 3.0), ("b", "a", 3.0))))
    for program in "ab":
        world.submit(program, request=replace(asks(gib=2, shares=True), kind=program), service_s=100.0)
    assert world.places == {"a": "n0"}
    assert spans(forecast(world.scheduler, world.now)) == {"a": (1000.0, 1100.0), "b": (1100.0, 1200.0)}


def test_a_flow_is_expected_to_wait_for_the_cores_that_training_was_found_to_need() -> None:
    world = World(node("n", 8), profile="adaptive", abilities=Abilities(cores=True))
    world.submit("training", service_s=1000.0)
    world.state.learned.cores.needs["training"] = 6
    world.submit("first", "second", request=asks(0, cpus=2), service_s=100.0)
    found = spans(forecast(world.scheduler, world.now))
    assert [found[job] for job in ("first", "second")] == [(1000.0, 1100.0), (1100.0, 1200.0)]


def test_what_happens_in_a_forecast_teaches_nobody() -> None:
    learned = Learned()
    learned.anti_affinity.part("a", "b")
    learned.incompatible.learn("a", "b", 9.0)
    twin = learned.copy()
    twin.anti_affinity.part("a", "c")
    twin.incompatible.learn("b", "a", 9.0)
    twin.cores.needs["a"] = 3
    twin.cores.finished("ann", "cv", 9, 1)
    twin.sensitivity.learn(Key("a", 2, 2), Key("b", 2, 2), 0.5)
    twin.sensitivity.communicates("a", Traffic(1e9, 1.0))
    twin.anti_affinity.forget("b")
    assert learned.anti_affinity.others("a") == {"b"} and learned.anti_affinity.others("b") == {"a"}
    assert twin.anti_affinity.others("a") == {"c"} and not twin.anti_affinity.others("b")
    assert twin.incompatible.are("a", "b") and not learned.incompatible.are("a", "b")
    assert not learned.cores.needs and learned.cores.start("ann", "cv") == 3 and twin.cores.start("ann", "cv") == 9
    assert learned.sensitivity.silent and twin.sensitivity.knows("b")


# -- what holds for any of them ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", sorted(all_profiles()))
def test_looking_ahead_changes_nothing_whatever_the_profile(profile: str) -> None:
    @FEW
    @given(abilities, st.lists(steps, min_size=5, max_size=25))
    def look(able: Abilities, happenings: list[tuple[Any, ...]]) -> None:
        outside = Outside(profile, able)
        for what in happenings:
            outside.step(what)
        state, now = outside.scheduler.state, outside.now
        learned = [vars(one) for one in vars(state.learned).values()]
        before = deepcopy([(vars(job), job.id) for job in state.jobs.values()]), deepcopy(learned)
        due = outside.scheduler.next_due()
        found = forecast(outside.scheduler, now)
        assert forecast(outside.scheduler, now) == found
        state.check_invariants()
        assert ([(vars(job), job.id) for job in state.jobs.values()], learned) == before
        assert outside.scheduler.next_due() == due
        assert set(found) == set(state.jobs)
        for job in state.jobs.values():
            outlook = found[job.id]
            if not job.active and outlook.start is not None:
                assert outlook.start >= max(now, job.due_at)
            if outlook.end is not None:
                assert outlook.end >= max(now, outlook.start or now)
                assert job.estimate.service_s is not None
            assert outlook.reason
        assert all(job in JOBS for job in found)

    look()


class Watched(Simulated):
    """A simulated cluster in which somebody looks ahead after every third decision."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.looks: list[dict[str, Outlook]] = []
        self.decisions = 0

    def _decide(self) -> None:
        super()._decide()
        saving = any(run.status is Status.SAVING for run in self.runs.values())  # nobody knows since when
        if self._next_job is None and not saving:
            self.decisions += 1
            if self.decisions % 3 == 1:
                self.looks.append(forecast(self.scheduler, self.now))


models = st.builds(
    lambda service_s, launching_s, saving_s, gpus: JobModel(
        "", 0.0, service_s, Request(gpus), launching_s, saving_s, estimate=Estimate(service_s, launching_s, saving_s)
    ),
    st.integers(1, 40).map(float),
    st.integers(0, 4).map(float),
    st.integers(0, 3).map(float),
    st.sampled_from([1, 1, 1, 2, 3]),
)


@pytest.mark.parametrize("profile", ["fifo", "strict-fifo", "sjf", "priority", "easy", "drf", "adaptive"])
def test_what_is_expected_is_what_a_simulation_then_does(profile: str) -> None:
    @FEW
    @given(st.lists(models, min_size=1, max_size=9))
    def simulate(jobs: list[JobModel]) -> None:
        cluster = [Node(name, tuple(Device(f"{name}{at}", "test", 8) for at in range(3)), ()) for name in "ab"]
        named = [replace(model, id=f"job-{at}") for at, model in enumerate(jobs)]
        world = Watched(cluster, named, profile, abilities=NOTHING_SPECIAL)
        outcomes = {outcome.job: outcome for outcome in world.run().outcomes}
        assert len(world.looks[0]) == len(jobs)
        for look in world.looks:
            for job, outlook in look.items():
                assert outlook.start == pytest.approx(outcomes[job].first_start_s, abs=1e-6)
                assert outlook.end == pytest.approx(outcomes[job].end_s, abs=1e-6)

    simulate()
