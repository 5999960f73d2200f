"""When CPU jobs take the memory bandwidth that training needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.cores.throttle import BANDWIDTH_LIMIT, CpuJob, ThrottleByBandwidth, throttle
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.instructions import SetCores
from prefect_gpu.scheduling.profiles import Profile
from tests.scheduling.world import World, asks, node

DROPPED, CALM, NO_TRAINING = {"disturbed": True}, {"disturbed": False}, {"disturbed": False, "training": False}


def cpu(name: str, cores: int, use: float, full: int | None = None) -> CpuJob:
    """A CPU job."""
    return CpuJob(name, cores, full or cores, use)


# part of the bandwidth in use, training, CPU jobs, and the cores of those that change, in order
TABLE: dict[str, tuple[float, dict[str, bool], list[CpuJob], dict[str, int]]] = {
    "the hungriest job's cores are halved": (0.9, DROPPED, [cpu("small", 4, 0.1), cpu("big", 8, 0.5)], {"big": 4}),
    "others follow until the node should be under the limit": (
        0.9,
        DROPPED,
        [cpu("a", 4, 0.12), cpu("b", 5, 0.2), cpu("c", 2, 0.05)],
        {"b": 2, "a": 2},
    ),
    "a full bus and a drop are contention": (0.75, DROPPED, [cpu("a", 8, 0.5)], {"a": 4}),
    "a drop alone is not": (0.74, DROPPED, [cpu("a", 8, 0.5)], {}),
    "a full bus alone is not": (0.99, CALM, [cpu("a", 8, 0.5)], {}),
    "without training there is nothing to protect": (0.99, NO_TRAINING, [cpu("a", 8, 0.5)], {}),
    "a throttled job is throttled further": (0.9, DROPPED, [cpu("a", 2, 0.4, full=4)], {"a": 1}),
    "no job gets less than one core": (0.9, DROPPED, [cpu("a", 1, 0.4)], {}),
    "a job that uses no bandwidth is left alone": (0.9, DROPPED, [cpu("a", 8, 0.0)], {}),
    "once there is room a job gets back what it had": (0.4, CALM, [cpu("a", 2, 0.1, full=8)], {"a": 8}),
    "the least hungry get it back first, as far as there is room": (
        0.4,
        CALM,
        [cpu("hungry", 4, 0.2, full=16), cpu("modest", 2, 0.04, full=4), cpu("free", 2, 0.1)],
        {"modest": 4},
    ),
    "with too little room nobody gets anything back": (0.7, CALM, [cpu("a", 2, 0.1, full=4)], {}),
    "without training everybody gets everything back": (
        0.9,
        NO_TRAINING,
        [cpu("a", 2, 0.3, full=16), cpu("b", 1, 0.2, full=4)],
        {"b": 4, "a": 16},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_throttling(case: str) -> None:
    pressure, training, jobs, expected = TABLE[case]
    assert list(throttle(pressure, jobs, **training).items()) == list(expected.items())  # type: ignore[arg-type]


cpu_jobs = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16), st.floats(0, 0.5)), max_size=6).map(
    lambda found: [CpuJob(str(number), cores, cores + more, use) for number, (cores, more, use) in enumerate(found)]
)


@given(cpu_jobs, st.floats(0, 1), st.booleans())
def test_contention_only_takes_and_calm_only_gives(jobs: list[CpuJob], beside: float, disturbed: bool) -> None:
    pressure = beside + sum(job.use for job in jobs)
    contended = disturbed and pressure >= BANDWIDTH_LIMIT
    by_id = {job.id: job for job in jobs}
    for name, cores in throttle(pressure, jobs, disturbed=disturbed).items():
        assert 1 <= cores <= by_id[name].full_cores
        assert cores < by_id[name].cores if contended else cores > by_id[name].cores


@given(cpu_jobs, st.floats(0, 1))
def test_contention_that_stays_is_throttled_in_a_bounded_number_of_steps(jobs: list[CpuJob], beside: float) -> None:
    for _ in range(40):
        pressure = beside + sum(job.use for job in jobs)
        cores = throttle(pressure, jobs, disturbed=True)
        if not cores or pressure < BANDWIDTH_LIMIT:
            break
        jobs = [
            CpuJob(job.id, cores[job.id], job.full_cores, job.use * cores[job.id] / job.cores)
            if job.id in cores
            else job
            for job in jobs
        ]
    else:
        pytest.fail("it never came to rest")


@pytest.mark.parametrize("utilisation", [0.1, 0.35, 0.6, 0.9])  # 0.35 + 0.05 - 0.35 is less than 0.05
def test_a_run_that_was_never_seen_undisturbed_counts_as_disturbed(utilisation: float) -> None:
    profile = Profile("test", reactions=(ThrottleByBandwidth(),))
    world = World(node("n", 8), profile=profile, abilities=Abilities(cores=True))
    world.submit("training", request=asks(cpus=2))
    world.submit("flow", request=asks(0, cpus=4))
    world.train("training")
    world.handle(ev.PressureMeasured("n", 0.9))
    said = world.handle(ev.UtilisationMeasured("training", utilisation))
    assert [(one.job, len(one.cpus)) for one in said if isinstance(one, SetCores)] == [("flow", 2)]
