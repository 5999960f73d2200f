"""Tiresias' queues, where jobs are not those of its paper."""

from __future__ import annotations

from prefect_gpu.papers.baselines.tiresias import TIRESIAS_LIMITS
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World


def test_a_job_without_devices_reaches_no_limit_of_device_seconds() -> None:
    """Whoever is asked to look again at its limit would have to do so for ever."""
    nodes = [Node("n", (Device("n0", "gpu", 8),), tuple(range(4)))]
    length_s = 3 * TIRESIAS_LIMITS[-1]
    world = World(nodes, [JobModel("cpu", 0.0, length_s, Request(gpus=0, cpus=1))], "tiresias")
    assert [outcome.end_s for outcome in world.run().finished] == [length_s]
    assert world.results.decisions < 10
