"""A simulated cluster carries out instructions as a real one would: what takes time takes time, and in order."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_gpu.papers.free_moves import with_free_moves
from prefect_gpu.scheduling import SchedulingError
from prefect_gpu.scheduling.allocation.backfill import Backfill
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.jobs import Estimate, Request, Status
from prefect_gpu.scheduling.order.orders import Srtf
from prefect_gpu.scheduling.preemption.make_room import MakeRoom
from prefect_gpu.scheduling.profiles import Profile, get_profile
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Physics, Slowdowns, Undisturbed
from prefect_gpu.simulation.results import quantile
from prefect_gpu.simulation.run import Run
from prefect_gpu.simulation.world import World
from tests.support import examples


def cluster(nodes: int = 1, devices: int = 1) -> list[Node]:
    return [
        Node(f"n{n}", tuple(Device(f"n{n}g{d}", "gpu", 8) for d in range(devices)), tuple(range(4)))
        for n in range(nodes)
    ]


def job(name: str, at: float, service_s: float, gpus: int = 1, *, stops: bool = True, **more: Any) -> JobModel:
    """A job whose length is known, and which can be stopped."""
    known = Estimate(service_s=service_s, launching_s=more.get("launching_s", 0.0))
    return JobModel(name, at, service_s, Request(gpus=gpus, preemptible=stops), estimate=known, **more)


def srtf() -> Profile:
    return Profile("srtf", Srtf(), allocation=(Backfill(MakeRoom()),), patience_s=math.inf)


def ends(world: World) -> dict[str, float]:
    """When each job ended."""
    return {outcome.job: outcome.end_s for outcome in world.run().finished if outcome.end_s is not None}


def test_a_job_launches_trains_and_saves() -> None:
    assert ends(World(cluster(), [job("a", 5.0, 100.0, launching_s=10.0, saving_s=3.0)], "fifo")) == {"a": 118.0}


def test_jobs_on_one_device_take_turns() -> None:
    jobs = [job("a", 0.0, 100.0), job("b", 1.0, 50.0)]
    assert ends(World(cluster(), jobs, "fifo")) == {"a": 100.0, "b": 150.0}


def test_a_job_that_is_stopped_saves_first_and_carries_on_later() -> None:
    jobs = [job("long", 0.0, 100.0, checkpoint_s=4.0, restore_s=2.0, launching_s=10.0), job("short", 50.0, 5.0)]
    # long trains from 10 to 50, saves until 54; short has the device until 59; long launches and restores until 71.
    assert ends(World(cluster(), jobs, srtf())) == {"short": 59.0, "long": 131.0}


class Restless(Reaction):
    """It asks to look again at once, whatever happens."""

    def react(self, event: Event, decision: Decision) -> bool:
        """See the class."""
        decision.look_again_at(decision.now)
        return False


def test_a_policy_that_looks_again_at_once_for_ever_ends_the_simulation() -> None:
    world = World(cluster(), [job("a", 5.0, 100.0)], Profile("restless", reactions=(Restless(),)))
    with pytest.raises(SchedulingError, match=r"look_again_at\(.*\) is not later than now"):
        world.run()


def test_news_that_come_with_heartbeats_come_late() -> None:
    jobs = [job("a", 0.0, 12.0), job("b", 0.0, 5.0)]
    assert ends(World(cluster(), jobs, "fifo", heartbeat_s=5.0)) == {"a": 12.0, "b": 20.0}


def test_a_job_that_crashes_is_run_again_from_where_it_was() -> None:
    jobs = [job("a", 0.0, 100.0, fails_after_s=40.0, launching_s=10.0)]
    world = World(cluster(), jobs, "fifo")
    assert ends(world) == {"a": 120.0} and world.results.outcomes[0].starts == 2


def test_a_prepared_job_trains_as_soon_as_its_predecessor_saves() -> None:
    jobs = [job("a", 0.0, 100.0, saving_s=20.0), job("b", 0.0, 50.0, launching_s=30.0)]
    world = World(cluster(), jobs, "liquid-immediate")
    assert ends(world) == {"a": 120.0, "b": 150.0}


def test_an_elastic_job_is_as_fast_as_its_devices_make_it() -> None:
    model = JobModel("a", 0.0, 100.0, Request(gpus=2), throughput=(1.0, 1.5))
    assert [model.speed_on(gpus) for gpus in (1, 2, 3)] == [1.0 / 1.5, 1.0, 1.0]


class Crowd(Physics):
    """Each run on a node gets an equal part of it."""

    def speed(self, run: Run, world: World) -> float:
        return 1.0 / len(world.on_node[run.placement.node]) if run.placement else 1.0

    def concerned(self, run: Run, world: World) -> list[Run]:
        return [] if run.placement is None else list(world.on_node[run.placement.node].values())


def test_who_leaves_makes_the_others_faster() -> None:
    jobs = [job("a", 0.0, 10.0), job("b", 0.0, 20.0)]
    # Until 20 both have half; then b, which has had 10 of its 20 seconds, is alone.
    assert ends(World(cluster(devices=2), jobs, "fifo", physics=Slowdowns(Undisturbed(), Crowd()))) == {
        "a": 20.0,
        "b": 30.0,
    }


def test_the_loss_of_a_run_is_linear_between_its_points() -> None:
    model = JobModel("a", 0.0, 100.0, losses=(4.0, 2.0, 1.0))
    assert [model.loss_at(done) for done in (0.0, 25.0, 50.0, 75.0, 100.0, 200.0)] == [4.0, 3.0, 2.0, 1.5, 1.0, 1.0]


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, q) for q in (0.5, 0.9, 0.99, 1.0)] == [50.0, 90.0, 99.0, 100.0]
    assert quantile([], 0.5) == 0.0 and quantile([7.0], 0.99) == 7.0


def test_the_summary_has_exactly_the_figures_that_are_promised() -> None:
    summary = World(cluster(), [job("a", 0.0, 10.0)], "fifo").run().summary()
    assert list(summary) == [
        "jobs",
        "mean_jct_s",
        "p50_jct_s",
        "p90_jct_s",
        "p99_jct_s",
        "makespan_s",
        "mean_wait_s",
        "gpu_busy_fraction",
        "wall_s",
        "jobs_per_s",
        "decisions",
        "decision_p99_s",
    ]


class Watched(World):
    """Checks at each moment that what is so on the devices is possible."""

    def _happen(self, moment: float) -> None:
        super()._happen(moment)
        for device, runs in self.on_device.items():
            training = [run for run in runs.values() if run.status is Status.TRAINING]
            shared = all(run.model.request.shareable for run in training)
            assert len(training) <= 1 or shared, f"{device} trains {training}"
            for run in runs.values():
                assert self.active[run.model.id] is run
        self.scheduler.state.check_invariants()


models = st.builds(
    lambda at, service, gpus, launch, save, ckpt, can, fails: JobModel(
        "",
        at,
        service,
        Request(gpus=gpus, preemptible=can),
        launching_s=launch,
        saving_s=save,
        checkpoint_s=ckpt,
        restore_s=1.0,
        estimate=Estimate(service_s=service, launching_s=launch, saving_s=save),
        fails_after_s=fails,
    ),
    st.integers(0, 60).map(float),
    st.integers(1, 60).map(float),
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([0.0, 5.0]),
    st.sampled_from([0.0, 4.0]),
    st.sampled_from([0.0, 2.0]),
    st.booleans(),
    st.none() | st.integers(1, 30).map(float),
)


def made(profile: str, able: Abilities) -> Profile:
    """The profile, as it is where moving is free if it is free."""
    return with_free_moves(get_profile(profile)) if able.free_moves else get_profile(profile)


@settings(max_examples=examples(0.6), deadline=None)
@given(
    st.lists(models, min_size=1, max_size=12),
    st.sampled_from(["fifo", "easy", "srtf", "srsf", "las", "tiresias", "liquid-immediate", "adaptive"]),
    st.sampled_from([Preemption.NONE, Preemption.GRACEFUL, Preemption.INSTANT]),
    st.booleans(),
    st.sampled_from([0.0, 5.0]),
)
def test_every_job_ends_and_no_device_ever_trains_two(
    jobs: list[JobModel], profile: str, preemption: Preemption, gates: bool, heartbeat_s: float
) -> None:
    named = [
        JobModel(**{**{f: getattr(one, f) for f in one.__dataclass_fields__}, "id": f"job-{number}"})
        for number, one in enumerate(sorted(jobs, key=lambda one: one.submit_s))
    ]
    abilities = Abilities(preemption, preemption is Preemption.INSTANT, gates)
    results = Watched(
        cluster(2, 3), named, made(profile, abilities), abilities=abilities, heartbeat_s=heartbeat_s
    ).run()
    assert results.unfinished == [] and results.jobs == len(named)
    for outcome, one in zip(results.outcomes, named, strict=True):
        assert outcome.end_s is not None
        assert outcome.jct_s >= one.service_s - 1e-6, "nobody is faster than alone"


def test_a_job_that_may_not_be_stopped_is_not_moved_in_the_decision_that_starts_it() -> None:
    firm: dict[str, Any] = {"stops": False}
    jobs = [job(f"single-{number}", 0.0, 1.0, **firm) for number in range(6)]
    jobs.append(job("saves", 0.0, 1.0, **firm, saving_s=4.0))
    jobs.append(job("may-stop", 0.0, 2.0, launching_s=5.0))
    jobs += [job(f"later-{number}", 2.0, 1.0, 2, **firm) for number in range(2)]
    able = Abilities(Preemption.INSTANT, free_moves=True)
    results = Watched(cluster(2, 3), jobs, made("srtf", able), abilities=able, heartbeat_s=0.0).run()
    assert results.jobs == len(jobs) and results.unfinished == []


def test_a_job_that_ends_before_the_heartbeat_that_tells_of_it_cannot_be_stopped_any_more() -> None:
    slow: dict[str, Any] = {"stops": False, "launching_s": 5.0, "saving_s": 4.0}
    jobs = [job("a", 0.0, 51.0), job("b", 0.0, 10.0, 2, **slow), job("c", 1.0, 51.0, 2, **slow),
            job("d", 52.0, 26.0, 3, **slow)]  # fmt: skip
    able = Abilities(Preemption.INSTANT, free_moves=True)
    results = World(cluster(2, 3), jobs, made("las", able), abilities=able, heartbeat_s=5.0).run()
    assert results.jobs == 4 and results.unfinished == []


def test_jobs_that_stay_where_they_are_are_in_nobodys_way_when_others_are_seated_anew() -> None:
    asked = (("a", 1, 0.0), ("b", 1, 0.0), ("c", 1, 4.0), ("d", 1, 4.0), ("e", 2, 4.0), ("f", 2, 0.0))
    jobs = [job(name, 0.0, 1.0, gpus, stops=name == "d", saving_s=saving_s) for name, gpus, saving_s in asked]
    able = Abilities(Preemption.INSTANT, free_moves=True)
    results = World(cluster(2, 3), jobs, made("adaptive", able), abilities=able).run()
    assert results.jobs == 6 and results.unfinished == []
