"""Traces through either world."""

from __future__ import annotations

from itertools import pairwise

import pytest

from prefect_gpu.papers.from_trace import MEMORY_BYTES, cluster, request, select, simulate
from prefect_gpu.simulation.knowledge import KNOWLEDGE, Learned
from prefect_gpu.simulation.traces import TraceJob

JOBS = [
    TraceJob("long", 0.0, 1000.0, 2, "bert", iterations=1000),
    TraceJob("short", 10.0, 100.0, 2, "bert", iterations=100),
    TraceJob("wide", 20.0, 50.0, 4, "vgg16", iterations=50),
    TraceJob("again", 2000.0, 200.0, 2, "bert", iterations=200),
]


@pytest.mark.parametrize("world", ["cluster", "muri"])
@pytest.mark.parametrize("knowledge", sorted(KNOWLEDGE))
@pytest.mark.parametrize("profile", ["fifo", "srtf", "adaptive"])
def test_every_job_ends_whatever_is_known(world: str, knowledge: str, profile: str) -> None:
    results = simulate(
        JOBS, profile, nodes=2, gpus_per_node=2, world=world, knowledge=KNOWLEDGE[knowledge](), keep_timeline=True
    )
    assert results.unfinished == [] and len(results.finished) == len(JOBS)
    for job in JOBS:
        trained_s = sum(span.end_s - span.start_s for span in results.timeline if span.job == job.job_id)
        assert trained_s / job.gpus >= job.duration_s * 0.999  # restarts and overheads may add to it
    assert all(count >= 0 for _, count in results.queue_lengths) and results.queue_lengths[-1][1] == 0


@pytest.mark.parametrize("world", ["cluster", "muri"])
def test_a_device_has_one_job_at_a_time(world: str) -> None:
    results = simulate(JOBS, "srtf", nodes=1, gpus_per_node=4, world=world, keep_timeline=True)
    spans = sorted((span.device, span.start_s, span.end_s) for span in results.timeline if span.training)
    for (device, _, end), (other, start, _) in pairwise(spans):
        assert device != other or start >= end - 1e-9


def test_the_same_simulation_gives_the_same_results() -> None:
    twice = [simulate(JOBS, "srtf", nodes=1, gpus_per_node=4, knowledge=Learned()).outcomes for _ in range(2)]
    assert twice[0] == twice[1]


def test_what_can_never_run_is_sorted_out() -> None:
    found = select([*JOBS, TraceJob("huge", 0.0, 1.0, 9), TraceJob("light", 0.0, 1.0, 0)], devices=4)
    assert found.jobs == JOBS
    assert [job.job_id for job in found.too_large] == ["huge"]
    assert [job.job_id for job in found.without_gpu] == ["light"]


def test_a_part_of_a_gpu_is_shared_and_a_whole_one_is_not() -> None:
    half = request(TraceJob("half", 0.0, 100.0, 1, gpu_share=0.5))
    assert half.shareable and half.gpu_memory_bytes == MEMORY_BYTES // 2
    assert request(JOBS[0]).exclusive
    halves = [TraceJob(name, 0.0, 100.0, 1, gpu_share=0.5) for name in "ab"]
    assert simulate(halves, "fifo", nodes=1, gpus_per_node=1).makespan_s == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"world": "mars"}, "world='mars' is not known: choose one of cluster, muri"),
        ({"restart_cost_s": -1.0}, "restart_cost_s=-1.0 is negative or not finite"),
        ({"world": "muri", "restart_cost_s": 5.0}, "restart_cost_s=5 does not belong into world='muri'"),
        ({"sharing": True}, "sharing=True needs world='muri'"),
        ({"nodes": 0}, "nodes=0 leaves no device"),
        ({"gpus_per_node": 0}, "gpus_per_node=0 leaves no device"),
    ],
)
def test_arguments_that_do_not_go_together(wrong: dict[str, object], words: str) -> None:
    arguments = {"nodes": 1, "gpus_per_node": 1} | wrong
    with pytest.raises(ValueError, match=words):
        simulate(JOBS, "fifo", **arguments)  # type: ignore[arg-type]


def test_the_cluster_has_devices_of_different_names() -> None:
    devices = [device.id for node in cluster(3, 2) for device in node.devices]
    assert len(set(devices)) == 6
