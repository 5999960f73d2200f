"""Pictures of the policies for converged and for elastic runs: ``python docs/policies/draw_specon.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from prefect_gpu.papers.fscheduling import experiments as fscheduling
from prefect_gpu.papers.specon import experiments as specon
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.simulation.effects.company import Company
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.results import Results, Span
from prefect_gpu.simulation.world import World

IMAGES = Path(__file__).parent.parent / "images"


def draw_elastic() -> None:
    """Who has which GPU, in static slots of three and elastically."""
    figure, axes = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True)
    for axis, (title, results) in zip(
        axes,
        {
            "static slots of 3": fscheduling.run("fifo", 3, keep_timeline=True),
            "f-scheduling": fscheduling.run("f-scheduling", keep_timeline=True),
        }.items(),
        strict=True,
    ):
        _bars(axis, results, [device.id for device in fscheduling.machine().devices])
        axis.set_title(f"{title}: {results.makespan_s:,.0f} s", loc="left", fontsize=10)
    axes[1].set_xlabel("seconds (pale: launching, saving)")
    _save(figure, "policy-elastic.png")


def draw_convergence() -> None:
    """How far three runs have come that share two workers, with and without speculation."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharex=True, sharey=True)
    for axis, profile in zip(axes, ("round-robin", "specon"), strict=True):
        world = _Watched(specon.cluster(2), _three(), profile, physics=Company(specon.LOSS_IN_COMPANY), report_s=10.0)
        world.watch()
        world.run()
        for outcome in world.results.outcomes:
            points = [(at, done[outcome.job]) for at, done in world.seen if outcome.job in done]
            label = f"{outcome.job}: {outcome.jct_s:.0f} s"
            (line,) = axis.plot([at for at, _ in points], [loss for _, loss in points], label=label)
            axis.plot([outcome.end_s], [0.0], "o", color=line.get_color(), clip_on=False)
        axis.set_title(profile, loc="left", fontsize=10)
        axis.set_xlabel("seconds (dot: the run ends)")
        axis.legend(title="completion time", fontsize=9)
    axes[0].set_ylabel("loss")
    _save(figure, "policy-convergence.png")


def _three() -> list[JobModel]:
    """A and C share a worker from 100 s on; B has the other one until it ends."""
    request = Request(gpu_memory_bytes=1 << 30, exclusive=False, preemptible=True)
    curve = specon.curve(0.9)
    shape = {"A": (0.0, 260.0), "B": (10.0, 330.0), "C": (100.0, 260.0)}
    return [
        JobModel(name, at, service_s, request, checkpoint_s=2.0, restore_s=2.5, losses=curve)
        for name, (at, service_s) in shape.items()
    ]


class _Watched(World):
    """Remembers every few seconds the losses of the runs."""

    def watch(self, every_s: float = 4.0) -> None:
        self.seen: list[tuple[float, dict[str, float]]] = []
        self._every_s = every_s
        self._plan(0.0, self._look, None)

    def _look(self, _: object) -> None:
        for run in self.active.values():
            self._advance(run)
        self.seen.append((self.now, {name: run.model.loss_at(run.done_s) for name, run in self.active.items()}))
        self._plan(self.now + self._every_s, self._look, None)


def _bars(axis: plt.Axes, results: Results, devices: list[str]) -> None:
    colours = {outcome.job: f"C{number}" for number, outcome in enumerate(results.outcomes)}

    def draw(span: Span) -> None:
        axis.barh(
            devices.index(span.device),
            span.end_s - span.start_s,
            left=span.start_s,
            color=colours[span.job],
            alpha=1.0 if span.training else 0.35,
            height=0.9,
        )

    for span in results.timeline:
        draw(span)
    axis.set_yticks(range(len(devices)), devices, fontsize=8)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    axis.legend(handles, list(colours), fontsize=7, loc="lower right")


def _save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(IMAGES / name, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    draw_elastic()
    draw_convergence()
