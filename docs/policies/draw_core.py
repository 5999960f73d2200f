"""Draws the pictures of orders and allocations into docs/images. Needs matplotlib; run from the repository's root."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from prefect_gpu.papers.muri.world import MuriWorld
from prefect_gpu.scheduling.model.abilities import Abilities, Preemption
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob
from prefect_gpu.simulation.world import World

IMAGES = Path(__file__).resolve().parents[1] / "images"
WAITS = Abilities()
STOPS = Abilities(Preemption.GRACEFUL)


def cluster(devices: int) -> list[Node]:
    """One node."""
    return [Node("n", tuple(Device(f"GPU {number}", "gpu", 8) for number in range(devices)), ())]


def job(name: str, at: float, service_s: float, gpus: int = 1) -> JobModel:
    """A job that can be stopped, of known length."""
    return JobModel(name, at, service_s, Request(gpus=gpus, preemptible=True), estimate=Estimate(service_s=service_s))


def timeline(axis: Axes, results: Results, title: str) -> None:
    """Who trained where and when."""
    jobs = sorted({span.job for span in results.timeline})
    devices = sorted({span.device for span in results.timeline})
    for span in results.timeline:
        if not span.training:
            continue
        colour = f"C{jobs.index(span.job) % 10}"
        axis.barh(devices.index(span.device), span.end_s - span.start_s, left=span.start_s, color=colour, edgecolor="w")
        middle = (span.start_s + span.end_s) / 2
        axis.text(middle, devices.index(span.device), span.job, ha="center", va="center", fontsize=8, color="white")
    mean = results.summary()["mean_jct_s"]
    axis.set_yticks(range(len(devices)), devices)
    axis.invert_yaxis()
    axis.set_title(f"{title}: mean completion time {mean:.0f} s", loc="left", fontsize=9)


def compared(jobs: Sequence[JobModel], devices: int, rows: Sequence[tuple[str, Abilities]], name: str) -> None:
    """The same jobs under several profiles."""
    figure, axes = plt.subplots(len(rows), 1, sharex=True, figsize=(8, 0.5 + len(rows) * (0.55 + 0.35 * devices)))
    for axis, (profile, abilities) in zip(axes, rows, strict=True):
        world = World(cluster(devices), jobs, profile, abilities=abilities, keep_timeline=True)
        timeline(axis, world.run(), profile)
    axes[-1].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(IMAGES / f"policy-{name}.png", dpi=110)


def order() -> None:
    """A long job first, then short ones, one of them wide."""
    jobs = [job("a", 0, 300), job("b", 0, 260), job("c", 20, 60), job("d", 40, 40, 2), job("e", 60, 30)]
    compared(jobs, 2, [("fifo", WAITS), ("sjf", WAITS), ("srtf", STOPS), ("srsf", STOPS), ("las", STOPS)], "order")


def backfill() -> None:
    """A wide job waits; short ones pass it if they do not delay it."""
    jobs = [job("a", 0, 100), job("b", 0, 300), job("wide", 5, 80, 3), job("short", 10, 80), job("long", 15, 250)]
    compared(jobs, 3, [("strict-fifo", WAITS), ("sjf", WAITS), ("easy", WAITS)], "backfill")


def adaptive() -> None:
    """Mean completion times of drawn workloads under several profiles, in the world where moving is free."""
    profiles = ["tiresias", "las", "srtf", "srsf", "adaptive"]
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
    for axis, sharing in zip(axes, (False, True), strict=True):
        names = (
            [*profiles, "adaptive, nothing known"] if not sharing else ["srsf", "adaptive", "adaptive, nothing known"]
        )
        values = [_mean(name, sharing) for name in names]
        axis.barh(names, [value / 3600 for value in values], color=["lightgrey"] * (len(names) - 2) + ["C2", "C2"])
        axis.set_title("jobs may share devices" if sharing else "devices of their own", loc="left", fontsize=9)
        axis.set_xlabel("mean completion time, simulated hours")
        axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(IMAGES / "policy-adaptive.png", dpi=110)


def _mean(name: str, sharing: bool) -> float:
    profile, _, unknown = name.partition(",")
    means = []
    for seed in range(5):
        world = MuriWorld(8, 8, _drawn(seed), profile, sharing=sharing, estimate=lambda _, s: None if unknown else s)
        means.append(world.run().summary()["mean_jct_s"])
    return sum(means) / len(means)


def _drawn(seed: int) -> list[TraceJob]:
    chance = random.Random(seed)
    now, jobs = 0.0, []
    for number in range(400):
        now += chance.expovariate(1 / 600)
        stages = chance.choice([(0.1, 0.8, 0.1), (0.6, 0.3, 0.1), (0.2, 0.3, 0.5)])
        gpus = chance.choice([1, 1, 1, 1, 2, 4, 8, 8, 16])
        iterations = int(chance.lognormvariate(8.5, 1.8)) + 1
        jobs.append(
            TraceJob(str(number), now, iterations, gpus, iterations=iterations, iteration_s=1.0, stages_s=stages)
        )
    return jobs


if __name__ == "__main__":
    order()
    backfill()
    adaptive()
