"""Picture of the contention-aware policy: ``python docs/policies/draw_deepshare.py``."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from prefect_gpu.papers.deepshare.contended import MIXES, draw, predicted_table
from prefect_gpu.papers.deepshare.experiments import knowing
from prefect_gpu.papers.deepshare.traffic import TRAFFIC
from prefect_gpu.papers.deepshare.world import DeepShareWorld, Figures
from prefect_gpu.scheduling.interference.sensitivity import predicted_ratio
from prefect_gpu.scheduling.profiles import Profile, get_profile

IMAGES = Path(__file__).parent.parent / "images"
BARS = {"deepshare-las": "#b9c4d0", "deepshare-srtf": "#7f93a8", "deepshare": "#0f6fb5"}


def figures(mix: str, name: str) -> Figures:
    """256 jobs of a mix."""
    table = predicted_table()
    profile: Profile = knowing(table) if name == "deepshare" else get_profile(name)
    world = DeepShareWorld(draw(1, 256, mix), table, profile, flaw=False)
    world.run()
    return world.figures()


def draw_sensitivity(axes: plt.Axes) -> None:
    """Who slows whom down, as predicted."""
    models = list(TRAFFIC)
    values = [[predicted_ratio(TRAFFIC[own], TRAFFIC[other]) for other in models] for own in models]
    axes.imshow(values, cmap="YlOrRd_r", vmin=0.4, vmax=1.0)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(models)), models, rotation=35, ha="right", fontsize=8)
    axes.set_yticks(range(len(models)), models, fontsize=8)
    axes.set_title("Part of its speed that a model (row)\nkeeps beside another (column), predicted", fontsize=10)


def draw_mixes(running: plt.Axes, completion: plt.Axes) -> None:
    """Running and completion times in the paper's four mixes."""
    for at, (name, colour) in enumerate(BARS.items()):
        found = [figures(mix, name) for mix in MIXES]
        where = [place + (at - 1) * 0.27 for place in range(len(MIXES))]
        running.bar(where, [one.running_s / 3600 for one in found], 0.25, color=colour)
        completion.bar(where, [one.completion_s / 3600 for one in found], 0.25, color=colour, label=name)
    for axes, title in (
        (running, "Mean running time [h]\n(1 h if alone)"),
        (completion, "Mean completion [h],\nwaiting included"),
    ):
        axes.set_xticks(range(len(MIXES)), list(MIXES))
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    completion.legend(fontsize=8, loc="upper right", frameon=False)
    completion.set_ylim(0, 85)


def main() -> None:
    """Draw it."""
    picture, (left, middle, right) = plt.subplots(1, 3, figsize=(12.5, 4.2), layout="constrained")
    draw_sensitivity(left)
    draw_mixes(middle, right)
    picture.savefig(IMAGES / "policy-contention.png", dpi=110)


if __name__ == "__main__":
    main()
