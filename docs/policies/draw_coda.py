"""Pictures of CODA's policies: ``python docs/policies/draw_coda.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.effects.cores import Cores
from prefect_gpu.simulation.effects.memory import MemoryBandwidth
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.physics import Slowdowns
from prefect_gpu.simulation.world import World

IMAGES = Path(__file__).parent.parent / "images"
NODE = Node("n", tuple(Device(f"g{number}", "test", 1) for number in range(5)), tuple(range(28)))


class Watched(World):
    """Remembers each minute how many cores and how much of their speed the jobs have."""

    def watch(self, every_s: float = 30.0) -> None:
        self.seen: list[tuple[float, dict[str, tuple[int, float]]]] = []
        self._every_s = every_s
        self._plan(0.0, self._look, None)

    def _look(self, _: object) -> None:
        now = {name: (len(run.placement.cpus), run.speed) for name, run in self.active.items() if run.placement}
        self.seen.append((self.now / 60, now))
        self._plan(self.now + self._every_s, self._look, None)


def run(profile: str, jobs: list[JobModel]) -> Watched:
    """One node under a profile."""
    world = Watched([NODE], jobs, profile, physics=Slowdowns(Cores(), MemoryBandwidth()), report_s=90.0)
    world.watch()
    world.run()
    return world


def series(world: Watched, job: str, what: int) -> tuple[list[float], list[float]]:
    """(minutes, values) of one job while it had a process; what: 0 cores, 1 speed."""
    found = [(minute, float(now[job][what])) for minute, now in world.seen if job in now]
    return [minute for minute, _ in found], [value for _, value in found]


def training(name: str, asked: int, need: int, submit_s: float = 0.0) -> JobModel:
    """A training job of half an hour."""
    request = Request(1, cpus=asked, category="nlp", owner=name, preemptible=True)
    return JobModel(name, submit_s, 1800.0, request, cores=need, memory_sensitivity=0.5, memory_bandwidth=0.03)


def draw_tuning() -> None:
    """Cores and speed of three jobs that asked for the wrong number of cores."""
    jobs = [training("asked 1, can use 7", 1, 7), training("asked 12, can use 2", 12, 2), training("asked 5", 5, 5)]
    world = run("coda", jobs)
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    for job in jobs:
        above.step(*series(world, job.id, 0), where="post", label=job.id)
        below.step(*series(world, job.id, 1), where="post", label=job.id)
    above.set(ylabel="cores", title="CODA's tuning: 90 s for each count, fewer first", xlim=(0, 20), ylim=(0, None))
    below.set(ylabel="speed (1: undisturbed)", xlabel="minutes", ylim=(0, 1.05))
    above.legend(loc="upper right", frameon=False)
    _save(figure, "policy-core-tuning.png")


def draw_elimination() -> None:
    """Speed of a training job, and cores of a CPU job that takes the memory bandwidth from it."""
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5))
    hungry = JobModel("c", 900.0, 900.0, Request(0, cpus=16, preemptible=True), memory_bandwidth=0.95)
    for profile, label in (("coda", "with the eliminator"), ("coda-without-eliminator", "without")):
        world = run(profile, [training("a", 5, 5), hungry])
        above.step(*series(world, "a", 1), where="post", label=label)
        below.step(*series(world, "c", 0), where="post", label=label)
    above.set(ylabel="speed of training", ylim=(0, 1.05), title="A CPU job uses 95 % of the node's memory bandwidth")
    below.set(ylabel="cores of the CPU job", xlabel="minutes", ylim=(0, 17))
    above.legend(loc="lower right", frameon=False)
    _save(figure, "policy-eliminator.png")


def draw_arrays() -> None:
    """Who holds the cores of a node as GPU jobs come: the CPU jobs that had borrowed cores give them back."""
    cpu = [JobModel(f"c{n}", 0.0, 3000.0, Request(0, cpus=7, preemptible=True, owner="c")) for n in range(4)]
    gpu = [training(f"g{n}", 5, 5, submit_s=300.0 * (n + 1)) for n in range(4)]
    world = run("coda", cpu + gpu)
    minutes = [minute for minute, _ in world.seen]
    held = [
        [sum(cores for name, (cores, _) in now.items() if name[0] == letter) for _, now in world.seen]
        for letter in "gc"
    ]
    figure, axes = plt.subplots(figsize=(8, 3.5))
    axes.stackplot(minutes, *held, labels=["GPU jobs", "CPU jobs"], step="post", colors=["#4c78a8", "#f2b04c"])
    axes.set(ylabel="cores of the node", xlabel="minutes", ylim=(0, 28), xlim=(0, 70))
    axes.set_title("CPU jobs borrow the cores that are reserved for GPU jobs, and give them back")
    axes.legend(loc="upper right")
    _save(figure, "policy-multi-array.png")


def _save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw_tuning()
    draw_elimination()
    draw_arrays()
