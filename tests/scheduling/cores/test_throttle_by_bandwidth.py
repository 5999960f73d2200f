"""When CPU jobs take the memory bandwidth that training needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.cores.throttle_by_bandwidth import CpuJob, Training, contended, throttle

CALM, DROPPED = Training(0.9, 0.92), Training(0.6, 0.9)

CONTENTION = {
    "a full bus and a drop are contention": (75, [DROPPED], True),
    "one job that dropped is enough": (90, [CALM, DROPPED], True),
    "a full bus alone is not": (99, [CALM], False),
    "a drop alone is not": (74, [DROPPED], False),
    "without training there is nothing to protect": (99, [], False),
}


@pytest.mark.parametrize("case", CONTENTION)
def test_what_counts_as_contention(case: str) -> None:
    used, training, expected = CONTENTION[case]
    assert contended(used, 100, training) is expected


def cpu(name: str, cores: int, rate: float, full: int | None = None) -> CpuJob:
    """A CPU job."""
    return CpuJob(name, cores, full or cores, rate)


# used of 100, training, CPU jobs, and the cores of those that change, in order
TABLE: dict[str, tuple[float, list[Training], list[CpuJob], dict[str, int]]] = {
    "the hungriest job's cores are halved": (90, [DROPPED], [cpu("small", 4, 10), cpu("big", 8, 50)], {"big": 4}),
    "others follow until the node should be under the limit": (
        90,
        [DROPPED],
        [cpu("a", 4, 12), cpu("b", 5, 20), cpu("c", 2, 5)],
        {"b": 2, "a": 2},
    ),
    "a throttled job is throttled further": (90, [DROPPED], [cpu("a", 2, 40, full=4)], {"a": 1}),
    "no job gets less than one core": (90, [DROPPED], [cpu("a", 1, 40)], {}),
    "a job that uses no bandwidth is left alone": (90, [DROPPED], [cpu("a", 8, 0)], {}),
    "without contention nothing is throttled": (90, [CALM], [cpu("a", 8, 50)], {}),
    "once there is room a job gets back what it had": (40, [CALM], [cpu("a", 2, 10, full=8)], {"a": 8}),
    "the least hungry get it back first, as far as there is room": (
        40,
        [CALM],
        [cpu("hungry", 4, 20, full=16), cpu("modest", 2, 4, full=4), cpu("free", 2, 10)],
        {"modest": 4},
    ),
    "with too little room nobody gets anything back": (70, [CALM], [cpu("a", 2, 10, full=4)], {}),
    "without training everybody gets everything back": (
        90,
        [],
        [cpu("a", 2, 30, full=16), cpu("b", 1, 20, full=4)],
        {"b": 4, "a": 16},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_throttling(case: str) -> None:
    used, training, jobs, expected = TABLE[case]
    assert list(throttle(used, 100, training, jobs).items()) == list(expected.items())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: cpu("a", 0, 1.0), "has 0 of 0 cores"),
        (lambda: cpu("a", 4, 1.0, full=2), "has 4 of 2 cores"),
        (lambda: cpu("a", 4, -1.0), "bytes_per_s of job 'a' is -1"),
        (lambda: contended(1, 0, []), "capacity_bytes_per_s is 0"),
    ],
)
def test_senseless_input_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


cpu_jobs = st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16), st.floats(0, 50)), max_size=6).map(
    lambda found: [CpuJob(str(number), cores, cores + more, rate) for number, (cores, more, rate) in enumerate(found)]
)


@given(cpu_jobs, st.floats(0, 100), st.lists(st.sampled_from([CALM, DROPPED]), max_size=3))
def test_contention_only_takes_and_calm_only_gives(jobs: list[CpuJob], beside: float, training: list[Training]) -> None:
    used = beside + sum(job.bytes_per_s for job in jobs)
    by_id = {job.id: job for job in jobs}
    for name, cores in throttle(used, 100, training, jobs).items():
        assert 1 <= cores <= by_id[name].full_cores
        assert cores < by_id[name].cores if contended(used, 100, training) else cores > by_id[name].cores


@given(cpu_jobs, st.floats(0, 100))
def test_contention_that_stays_is_throttled_in_a_bounded_number_of_steps(jobs: list[CpuJob], beside: float) -> None:
    for _ in range(40):
        used = beside + sum(job.bytes_per_s for job in jobs)
        cores = throttle(used, 100, [DROPPED], jobs)
        if not cores or not contended(used, 100, [DROPPED]):
            break
        jobs = [
            CpuJob(job.id, cores[job.id], job.full_cores, job.bytes_per_s * cores[job.id] / job.cores)
            if job.id in cores
            else job
            for job in jobs
        ]
    else:
        pytest.fail("it never came to rest")
