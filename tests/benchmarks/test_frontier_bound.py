"""The lower bounds of the world ``cluster``: no schedule is better, and where the best is known they say it."""

from __future__ import annotations

import random

import pytest

from benchmarks.frontier.bound import Work, at_prices, lower_bound_s, on_one_machine
from prefect_gpu.papers.from_trace import simulate
from prefect_gpu.simulation.traces import TraceJob


def test_one_after_the_other_on_the_only_device() -> None:
    """Lengths 1, 2 and 3 at once: 1, 3 and 6 seconds are the best that there is."""
    jobs = [Work(0.0, 1, length) for length in (1.0, 2.0, 3.0)]
    assert on_one_machine(jobs, 1)[0] == pytest.approx(10 / 3)
    assert lower_bound_s(jobs, 1) == pytest.approx(10 / 3)


def test_where_nobody_waits_a_job_takes_its_own_length() -> None:
    """Which the bound of one machine does not see, and prices do."""
    jobs = [Work(10.0 * at, 1, 4.0) for at in range(5)]
    assert on_one_machine(jobs, 8)[0] < 3.0
    assert lower_bound_s(jobs, 8) == pytest.approx(4.0)


def test_at_a_price_a_job_waits_for_cheaper_seconds() -> None:
    """Two seconds at once cost 2 + 2 x 3; it is better to wait for 4 seconds until a device costs nothing."""
    jobs = [Work(0.0, 1, 2.0)]
    bound_s, bought = at_prices(jobs, 1, [0.0, 4.0], [3.0])
    assert bound_s == pytest.approx(6.0 - 4.0 * 3.0)
    assert bought == [0.0, 2.0]
    bound_s, bought = at_prices(jobs, 1, [0.0, 4.0], [1.0])
    assert bound_s == pytest.approx(4.0 - 4.0)
    assert bought == [2.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
def test_no_schedule_is_better(seed: int) -> None:
    """Not even one that stops jobs for nothing."""
    chance, now_s, drawn = random.Random(seed), 0.0, []
    for at in range(60):
        now_s += chance.expovariate(1 / 40)
        drawn.append(TraceJob(f"{at}", now_s, chance.expovariate(1 / 200) + 1.0, chance.choice((1, 1, 2, 4, 8))))
    bound_s = lower_bound_s([Work(job.submit_s, job.gpus, job.duration_s) for job in drawn], 16)
    for profile in ("srsf", "srtf", "adaptive"):
        mean_s = simulate(drawn, profile, nodes=2, gpus_per_node=8).summary()["mean_jct_s"]
        assert 0.5 * mean_s < bound_s <= mean_s
