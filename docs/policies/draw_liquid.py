"""Draws the pictures of Liquid's policies into docs/images. Needs matplotlib; run from the repository's root."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt

from prefect_gpu.papers.liquid import experiments as liquid

IMAGES = Path(__file__).resolve().parents[1] / "images"


def successor() -> None:
    """One card, three runs, without and with pre-scheduling."""
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(8, 3))
    jobs = liquid._sequence(liquid.CNN_K80, 3, seed=1)
    for axis, gates in zip(axes, (False, True), strict=True):
        results = liquid._run(liquid._card(), jobs, "liquid-immediate", gates=gates)
        for span in results.timeline:
            row = int(span.job[-1])
            colour = "tab:green" if span.training else "lightgrey"
            axis.barh(row, span.end_s - span.start_s, left=span.start_s, color=colour, zorder=2 if span.training else 1)
        axis.set_yticks(range(3), [f"run {at + 1}" for at in range(3)])
        axis.invert_yaxis()
        axis.set_title("with pre-scheduling" if gates else "without", loc="left", fontsize=9)
    axes[1].set_xlabel("seconds (green: trains; grey: launches, waits or saves)")
    figure.tight_layout()
    figure.savefig(IMAGES / "policy-successor.png", dpi=110)


def placement() -> None:
    """Mean execution time of a gang under each way to place it."""
    rows = liquid.immediate(range(10))
    figure, axis = plt.subplots(figsize=(8, 2.8))
    names = [row.against for row in rows if row.against != "Kubeflow"]
    values = [row.baseline for row in rows if row.against != "Kubeflow"]
    axis.barh([*names, "Liquid best fit"], [*values, rows[0].result], color=["lightgrey"] * len(names) + ["tab:green"])
    axis.set_xlabel("mean execution time of 1 server + 2 workers on an empty cluster of 5 nodes, simulated seconds")
    figure.tight_layout()
    figure.savefig(IMAGES / "policy-placement.png", dpi=110)


if __name__ == "__main__":
    successor()
    placement()
