"""The world of Muri's simulator: the figures that its authors published, from our scheduler under their rules."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from prefect_gpu.papers.muri.interleaved import Interleaved
from prefect_gpu.papers.muri.world import MuriWorld, overhead_s
from prefect_gpu.scheduling.order.orders import Fifo
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob, read_trace
from tests.components import traces_folder


def trace(number: int) -> Iterable[TraceJob]:
    return read_trace(traces_folder() / "Rivendile-Muri" / "trace-data" / f"trace{number}.csv", "muri")


def simulated(number: int, profile: str, *, known: bool = True, sharing: bool = False) -> Results:
    def estimate(_: TraceJob, service_s: float) -> float | None:
        return service_s if known else None

    return MuriWorld(8, 8, trace(number), profile, estimate=estimate, sharing=sharing).run()


def mean_jct_s(number: int, profile: str, *, known: bool = True, sharing: bool = False) -> float:
    return simulated(number, profile, known=known, sharing=sharing).summary()["mean_jct_s"]


@pytest.mark.needs("traces")
@pytest.mark.parametrize(
    ("profile", "number", "published"),
    [
        ("srtf", 3, 193_081.796),
        ("srsf", 3, 185_021.880),
        ("tiresias", 3, 347_213.248),
        ("srtf", 1, 1_370_603.198),
        ("srsf", 1, 980_140.570),
        ("tiresias", 1, 3_330_371.307),
        ("srsf", 2, 2_213_949.687),
    ],
)
def test_the_peers_policies_come_out_as_published(profile: str, number: int, published: float) -> None:
    assert mean_jct_s(number, profile, known=profile != "tiresias") == pytest.approx(published, rel=1e-6)


@pytest.mark.needs("traces")
def test_srtf_on_the_longest_trace_comes_out_as_published() -> None:
    """Not to the digit: of jobs with equal times left, another one is first."""
    assert mean_jct_s(2, "srtf") == pytest.approx(2_665_607.375, rel=0.005)


@pytest.mark.needs("traces")
def test_adaptive_is_better_than_srsf_where_durations_are_known() -> None:
    assert mean_jct_s(3, "adaptive") < 185_021.9 * 0.97


@pytest.mark.needs("traces")
def test_adaptive_is_better_than_themis_where_nothing_is_known() -> None:
    assert mean_jct_s(3, "adaptive", known=False) < 401_060


@pytest.mark.needs("traces")
def test_adaptive_is_better_than_muri_s_where_jobs_share() -> None:
    assert mean_jct_s(3, "adaptive", sharing=True) <= 82_000


@pytest.mark.needs("traces")
def test_adaptive_is_better_than_muri_l_where_jobs_share_and_nothing_is_known() -> None:
    assert mean_jct_s(3, "adaptive", known=False, sharing=True) <= 88_000


def test_jobs_of_one_moment_are_decided_about_together() -> None:
    jobs = [TraceJob(str(n), 0.0, 10.0, 1, iterations=10, iteration_s=1.0) for n in range(5)]
    world = MuriWorld(1, 8, jobs, "srtf")
    results = world.run()
    assert results.decisions == 2, "one when they arrive, one when they end"


def test_jobs_that_fit_only_in_their_order_all_run_at_once_where_jobs_share() -> None:
    """Together they fill two nodes of 8, but not if the widest is placed first."""
    jobs = [
        TraceJob(str(n), 0.0, 10.0, gpus, iterations=10, iteration_s=1.0, stages_s=(0.2, 0.8, 0.0))
        for n, gpus in enumerate([3, 3, 2, 4, 2, 2])
    ]
    profile = Profile("in order", Fifo(), allocation=(Interleaved(),))
    results = MuriWorld(2, 8, jobs, profile, sharing=True).run()
    assert results.unfinished == [] and results.decisions == 2, "one when they arrive, one when they end"


def test_a_job_larger_than_the_cluster_is_named_and_holds_up_nobody() -> None:
    jobs = [TraceJob("huge", 0.0, 10.0, 99), TraceJob("small", 0.0, 10.0, 1)]
    results = MuriWorld(1, 8, jobs, "srtf").run()
    assert results.unfinished == ["huge"] and results.jobs == 1


@pytest.mark.parametrize(
    ("model", "gpus", "seconds"),
    [("a2c", 1, 38), ("a2c", 8, 46), ("vgg19", 16, 10), ("dqn", 3, 10), ("unheard-of", 1, 10)],
)
def test_the_overhead_depends_on_model_and_size(model: str, gpus: int, seconds: float) -> None:
    assert overhead_s(model, gpus) == seconds
