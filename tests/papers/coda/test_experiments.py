"""CODA in its own cluster, on a day or less: which way things go, not by how much."""

from __future__ import annotations

import pytest

from prefect_gpu.papers.coda.experiments import Figures, simulate
from prefect_gpu.papers.coda.jobs import jobs
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.effects.cores import Cores
from prefect_gpu.simulation.effects.memory import MemoryBandwidth
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Physics, Slowdowns
from prefect_gpu.simulation.world import World

NODE = Node("n", (Device("g0", "t", 1), Device("g1", "t", 1)), tuple(range(16)))


def alone(need: int, asked: int, profile: str, physics: Physics, *others: JobModel) -> float:
    """How long an hour's job runs."""
    job = JobModel("a", 0.0, 3600.0, Request(1, cpus=asked, category="cv"), cores=need, memory_sensitivity=0.5)
    world = World([NODE], [job, *others], profile, physics=physics, report_s=90.0)
    world.run()
    return world.results.outcomes[0].jct_s


@pytest.mark.parametrize(("asked", "hours"), [(1, 4.0), (2, 2.0), (4, 1.0)])
def test_training_is_as_fast_as_its_cores_up_to_what_it_can_use(asked: int, hours: float) -> None:
    assert alone(4, asked, "coda-fifo", Cores()) == pytest.approx(hours * 3600)


def test_cores_too_many_slow_training_a_little() -> None:
    assert 3600 < alone(4, 10, "coda-fifo", Cores()) < 1.05 * 3600


def test_a_core_that_two_runs_share_is_worth_half_to_each() -> None:
    jobs = [JobModel(name, 0.0, 100.0, Request(1, cpus=16), cores=16) for name in "ab"]
    results = World([NODE], jobs, "fifo", physics=Cores()).run()
    assert [outcome.end_s for outcome in results.outcomes] == [200.0, 200.0]


@pytest.mark.parametrize(("need", "asked"), [(6, 1), (2, 16)])
def test_coda_finds_the_cores_in_minutes(need: int, asked: int) -> None:
    assert alone(need, asked, "coda", Cores()) < 3600 + 10 * 90


def test_the_eliminator_gives_training_its_bandwidth_back() -> None:
    hungry = JobModel("c", 0.0, 7200.0, Request(0, cpus=8, preemptible=True), memory_bandwidth=0.95)
    physics = Slowdowns(Cores(), MemoryBandwidth())
    slowed = alone(3, 3, "coda-without-eliminator", physics, hungry)
    assert alone(3, 3, "coda", physics, hungry) < slowed - 300


def test_a_job_that_does_not_resume_begins_again() -> None:
    cpu = JobModel("c", 0.0, 100.0, Request(0, cpus=16, preemptible=True), resumes=False)
    gpu = JobModel("a", 50.0, 100.0, Request(1, category="cv", cpus=3), cores=3)
    results = World([NODE], [cpu, gpu], "coda", physics=Cores()).run()
    ends = {outcome.job: outcome.end_s for outcome in results.outcomes}
    assert ends == {"a": 150.0, "c": 250.0}


@pytest.fixture(scope="module")
def figures() -> dict[str, Figures]:
    return {name: simulate(name, 0.4, 3) for name in ("coda-fifo", "coda")}


@pytest.mark.slow
def test_coda_uses_the_gpus_better_than_fifo(figures: dict[str, Figures]) -> None:
    assert figures["coda"].utilisation > 1.2 * figures["coda-fifo"].utilisation


@pytest.mark.slow
def test_coda_leaves_no_gpu_idle_for_want_of_cores(figures: dict[str, Figures]) -> None:
    assert figures["coda"].fragmentation <= 0.01


@pytest.mark.slow
def test_more_gpu_jobs_start_without_queueing(figures: dict[str, Figures]) -> None:
    assert figures["coda"].gpu_at_once >= figures["coda-fifo"].gpu_at_once


def test_the_same_seed_gives_the_same_jobs() -> None:
    assert jobs(0.1, 5) == jobs(0.1, 5) != jobs(0.1, 6)
