"""The picture of the learning curves: R² against the runs learned from, target by target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.estimation.figure10 import OURS
from prefect_gpu.estimation.runs import CPU_CORES, LAUNCHING_S, MEMORY_BYTES, SAVING_S, STEP_S, TRAINING_S

_TITLES = {
    TRAINING_S: "training time",
    MEMORY_BYTES: "peak memory",
    STEP_S: "time of a step",
    SAVING_S: "saving",
    LAUNCHING_S: "launching",
    CPU_CORES: "cores in use",
}


def draw(curve: dict[int, Any], unseen: dict[str, Any], path: Path) -> None:
    """Write the picture.

    Args:
        curve: By number of runs, the scores of every way to learn.
        unseen: By target, the scores on programs that were not learned from.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(12, 6.4), sharex=True)
    for axis, (target, title) in zip(axes.flat, _TITLES.items(), strict=True):
        for name in curve[max(curve)]:
            values = [curve[size][name][target]["r2"] for size in curve]
            own = name == OURS
            axis.plot(list(curve), values, marker="o", ms=3, lw=2.5 if own else 1.1, zorder=3 if own else 2, label=name)
        away = unseen[target][OURS]["r2"]
        axis.axhline(max(away, -0.2), color="gray", ls=":", lw=1)
        axis.annotate(
            f"program not seen before: {away:.2f}",
            (curve and min(curve), max(away, -0.2)),
            fontsize=7,
            color="gray",
            va="bottom",
        )
        axis.axhline(0.95, color="black", lw=0.5)
        axis.set_ylim(-0.25, 1.02)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25)
    for axis in axes[1]:
        axis.set_xlabel("runs learned from")
    for axis in axes[:, 0]:
        axis.set_ylabel("R² on 50 other runs")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), fontsize=8, loc="lower center", ncol=len(curve[max(curve)]))
    figure.tight_layout(rect=(0, 0.04, 1, 1))  # above the legend
    figure.savefig(path, dpi=130)
