"""The simulated part: a cluster of three kinds of devices, and programs that gain differently from a fast one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.effects.kinds import Kinds
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Slowdowns
from prefect_gpu.simulation.world import World

KINDS = {"A100": 8, "V100": 8, "T4": 16}
"""Devices of each kind; four on a node."""

SLOWER = {
    "language": {"A100": 1.0, "V100": 2.4, "T4": 6.0},
    "vision": {"A100": 1.0, "V100": 1.6, "T4": 3.0},
    "recommender": {"A100": 1.0, "V100": 1.1, "T4": 1.3},
}
"""The time of a step on each kind over that on the fastest: assumed, in the range that Gavel's tables span."""

LOAD = 0.7
"""Work that arrives over what the cluster could do if each program were spread over all devices alike."""

_MEAN_S, _SIGMA = 1800.0, 1.2


def nodes(seed: int) -> tuple[Node, ...]:
    """The cluster; its nodes in any order, so that who takes the first one is not lucky."""
    made = [
        Node(
            f"{kind}-{number}",
            tuple(Device(f"{kind}-{number}/{at}", kind, 16 << 30) for at in range(4)),
            tuple(range(16)),
        )
        for kind, count in KINDS.items()
        for number in range(count // 4)
    ]
    return tuple(random.Random(seed).sample(made, len(made)))


def jobs(count: int, seed: int, *, known: bool, preemptible: bool) -> list[JobModel]:
    """A workload: Poisson arrivals, durations of a log-normal distribution in seconds on the fastest kind.

    Args:
        known: Whether the scheduler is told what each program takes on each kind.
    """
    chance = random.Random(seed)
    speed = sum(
        devices * sum(1.0 / slower[kind] for slower in SLOWER.values()) / len(SLOWER) for kind, devices in KINDS.items()
    )
    gap_s = _MEAN_S / (LOAD * speed)
    found, now = [], 0.0
    for number in range(count):
        now += chance.expovariate(1.0 / gap_s)
        program = chance.choice(list(SLOWER))
        service_s = _MEAN_S * chance.lognormvariate(-(_SIGMA**2) / 2, _SIGMA)
        factors = tuple(SLOWER[program].items()) if known else ()
        told = Estimate(service_s, launching_s=20.0, saving_s=2.0, restart_s=10.0, kind="A100", by_kind=factors)
        request = Request(kind=program, preemptible=preemptible)
        found.append(
            JobModel(
                f"job-{number}", now, service_s, request, 20.0, 2.0, checkpoint_s=5.0, restore_s=5.0,
                estimate=told if known else replace(told, kind=""), kind=program,
            )
        )  # fmt: skip
    return found


def mean_jct_s(count: int, seed: int, *, known: bool, preemptible: bool, profile: str = "adaptive") -> float:
    """Mean job completion time of a workload."""
    cluster = nodes(seed)
    kind_of = {device.id: device.kind for node in cluster for device in node.devices}
    slower = {(program, kind): factor for program, row in SLOWER.items() for kind, factor in row.items()}
    workload = jobs(count, seed, known=known, preemptible=preemptible)
    world = World(cluster, workload, profile, physics=Slowdowns(Kinds(slower, kind_of)), report_s=60.0)
    results = world.run()
    if results.unfinished:
        raise RuntimeError(f"{len(results.unfinished)} jobs never ended")
    return sum(one.jct_s for one in results.outcomes) / count


def shorter(count: int, seeds: Callable[[], range], *, preemptible: bool) -> dict[str, float]:
    """Means over some workloads, in seconds: with kinds ignored, with kinds known, and by how much that is shorter."""
    ignored = [mean_jct_s(count, seed, known=False, preemptible=preemptible) for seed in seeds()]
    known = [mean_jct_s(count, seed, known=True, preemptible=preemptible) for seed in seeds()]
    return {
        "ignored_s": sum(ignored) / len(ignored),
        "known_s": sum(known) / len(known),
        "shorter": 1.0 - sum(known) / sum(ignored),
    }
