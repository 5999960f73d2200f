"""Draws the picture of Shockwave's world into docs/images, from what the benchmark has measured. Needs matplotlib.

python -m benchmarks.frontier.shockwave --traces DIR --json > RESULT.json
python docs/frontier/draw_shockwave.py RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).resolve().parents[1] / "images" / "frontier-shockwave.png"
NAMES = {
    "Gavel": "Gavel",
    "AlloX": "AlloX",
    "MST": "MST",
    "Themis": "Themis",
    "OSSP": "OSSP",
    "Shockwave": "Shockwave",
    "srtf": "shortest first",
    "ours": "ours",
}
TITLES = ("makespan (s); line: bound", "mean JCT (s)", "unfairly late jobs (%)")


def main(result: Path) -> None:
    """Three goals side by side."""
    measured = json.loads(result.read_text())
    rows = [measured["makespan, mean JCT, worst fairness, unfair %; the trace"][name] for name in NAMES]
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), sharey=True)
    for axis, column, title in zip(axes, (0, 1, 3), TITLES, strict=True):
        values = [row[column] for row in rows]
        bars = axis.barh([*NAMES.values()], values, color=[*["lightgrey"] * 7, "C2"])
        axis.bar_label(
            bars, [f"{value:,.0f}" if column < 3 else f"{value:.1f}" for value in values], padding=3, fontsize=8
        )
        axis.set_xlim(0, 1.3 * max(values))
        axis.set_title(title, loc="left", fontsize=9)
    axes[0].axvline(measured["bound of the makespan"], color="black", linewidth=0.8, linestyle=":")
    axes[0].invert_yaxis()  # all share it
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
