"""When CPU jobs take the memory bandwidth that training needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.scheduling.cores.eliminator import CpuJob, Limit, Training, contended, throttle

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


def cpu(name: str, cores: int, rate: float, full: int | None = None, percent: int = 100) -> CpuJob:
    """A CPU job."""
    return CpuJob(name, cores, full or cores, rate, percent)


# used of 100, training, CPU jobs, whether bandwidth can be limited, and the new limits as (job, percent, cores)
TABLE: dict[str, tuple[float, list[Training], list[CpuJob], bool, list[tuple[str, int, int]]]] = {
    "where bandwidth can be limited the hungriest job's is halved": (
        90,
        [DROPPED],
        [cpu("small", 4, 10), cpu("big", 8, 50)],
        True,
        [("big", 50, 8)],
    ),
    "elsewhere its cores are halved": (
        90,
        [DROPPED],
        [cpu("small", 4, 10), cpu("big", 8, 50)],
        False,
        [("big", 100, 4)],
    ),
    "others follow until the node should be under the limit": (
        90,
        [DROPPED],
        [cpu("a", 4, 12), cpu("b", 5, 20), cpu("c", 2, 5)],
        False,
        [("b", 100, 2), ("a", 100, 2)],
    ),
    "a throttled job is throttled further": (
        90,
        [DROPPED],
        [cpu("a", 2, 40, full=4)],
        False,
        [("a", 100, 1)],
    ),
    "bandwidth is limited in steps of ten percent": (
        90,
        [DROPPED],
        [cpu("a", 2, 40, percent=50)],
        True,
        [("a", 20, 2)],
    ),
    "no job gets less than one core": (90, [DROPPED], [cpu("a", 1, 40)], False, []),
    "no job gets less than ten percent": (90, [DROPPED], [cpu("a", 1, 40, percent=10)], True, []),
    "a job that uses no bandwidth is left alone": (90, [DROPPED], [cpu("a", 8, 0)], False, []),
    "without contention nothing is throttled": (90, [CALM], [cpu("a", 8, 50)], False, []),
    "once there is room a job gets back what it had": (
        40,
        [CALM],
        [cpu("a", 2, 10, full=8)],
        False,
        [("a", 100, 8)],
    ),
    "the least hungry get it back first, as far as there is room": (
        40,
        [CALM],
        [cpu("hungry", 4, 20, full=16), cpu("modest", 2, 4, full=4), cpu("free", 2, 10)],
        False,
        [("modest", 100, 4)],
    ),
    "with too little room nobody gets anything back": (70, [CALM], [cpu("a", 2, 10, full=4)], False, []),
    "without training everybody gets everything back": (
        90,
        [],
        [cpu("a", 2, 30, full=16), cpu("b", 4, 20, percent=20)],
        False,
        [("b", 100, 4), ("a", 100, 16)],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_throttling(case: str) -> None:
    used, training, jobs, can_limit, expected = TABLE[case]
    limits = throttle(used, 100, training, jobs, can_limit_bandwidth=can_limit)
    assert limits == [Limit(*one) for one in expected]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: cpu("a", 0, 1.0), "has 0 of 0 cores"),
        (lambda: cpu("a", 4, 1.0, full=2), "has 4 of 2 cores"),
        (lambda: cpu("a", 4, -1.0), "bytes_per_s of job 'a' is -1"),
        (lambda: cpu("a", 4, 1.0, percent=5), "percent of job 'a' is 5"),
        (lambda: contended(1, 0, []), "capacity_bytes_per_s is 0"),
    ],
)
def test_senseless_input_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


cpu_jobs = st.lists(
    st.tuples(st.integers(1, 16), st.integers(0, 16), st.floats(0, 50), st.sampled_from([100, 50, 20, 10])), max_size=6
).map(
    lambda found: [
        CpuJob(str(number), cores, cores + more, rate, percent)
        for number, (cores, more, rate, percent) in enumerate(found)
    ]
)


@given(cpu_jobs, st.floats(0, 100), st.lists(st.sampled_from([CALM, DROPPED]), max_size=3), st.booleans())
def test_contention_only_takes_calm_only_gives_and_each_job_is_changed_once(
    jobs: list[CpuJob], beside: float, training: list[Training], can_limit: bool
) -> None:
    used = beside + sum(job.bytes_per_s for job in jobs)
    limits = throttle(used, 100, training, jobs, can_limit_bandwidth=can_limit)
    by_id = {job.id: job for job in jobs}
    assert len({limit.job for limit in limits}) == len(limits)
    for limit in limits:
        job = by_id[limit.job]
        assert 1 <= limit.cores <= job.full_cores
        assert 10 <= limit.percent <= 100
        before, after = job.percent * job.cores, limit.percent * limit.cores
        assert after < before if contended(used, 100, training) else after > before


@given(cpu_jobs, st.floats(0, 100), st.booleans())
def test_contention_that_stays_is_throttled_in_a_bounded_number_of_steps(
    jobs: list[CpuJob], beside: float, can_limit: bool
) -> None:
    for _ in range(40):
        used = beside + sum(job.bytes_per_s for job in jobs)
        limits = {limit.job: limit for limit in throttle(used, 100, [DROPPED], jobs, can_limit_bandwidth=can_limit)}
        if not limits or not contended(used, 100, [DROPPED]):
            break
        jobs = [
            CpuJob(
                job.id,
                limits[job.id].cores,
                job.full_cores,
                job.bytes_per_s * limits[job.id].cores * limits[job.id].percent / (job.cores * job.percent),
                limits[job.id].percent,
            )
            if job.id in limits
            else job
            for job in jobs
        ]
    else:
        pytest.fail("it never came to rest")
