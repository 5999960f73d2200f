"""Draws the picture of ElasticFlow's world into docs/images, from what the benchmark has measured. Needs matplotlib.

python -m benchmarks.frontier.elasticflow --traces DIR --json > RESULT.json
python docs/frontier/draw_elasticflow.py RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).resolve().parents[1] / "images" / "frontier-elasticflow.png"
ALL = {
    "ElasticFlow": ("elasticflow", "lightgrey"),
    "EDF": ("edf, GPUs / 1, change", "darkgrey"),
    "EDF that gives up": ("edf, gives up, GPUs / 1, change", "grey"),
    "ours": ("adaptive, GPUs / 1, change", "C2"),
}
QUARTER = {
    "EDF": ("edf, GPUs / 4, change", "darkgrey"),
    "EDF that gives up": ("edf, gives up, GPUs / 4, change", "grey"),
    "ours": ("adaptive, GPUs / 4, change", "C2"),
}
TITLES = ("all GPUs: jobs in time (%); line: ceiling", "a quarter of the GPUs")


def main(result: Path) -> None:
    """The clusters with all GPUs, and with a quarter."""
    rows = json.loads(result.read_text())["satisfied, late"].values()
    names = [name.split()[1] for name in json.loads(result.read_text())["satisfied, late"]]
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True, width_ratios=(3, 2))
    for axis, kinds, title in zip(axes, (ALL, QUARTER), TITLES, strict=True):
        width = 0.8 / len(kinds)
        for number, (kind, (key, colour)) in enumerate(kinds.items()):
            found = [100 * (row[key][0] if isinstance(row[key], list) else row[key]) for row in rows]
            places = [at + (number - (len(kinds) - 1) / 2) * width for at in range(len(names))]
            bars = axis.bar(places, found, width, label=kind, color=colour)
            axis.bar_label(bars, [f"{value:.0f}" for value in found], padding=1, fontsize=7)
        for at, row in enumerate(rows):
            axis.hlines(100 * row["ceiling"], at - 0.45, at + 0.45, color="black", linewidth=0.8, linestyle=":")
        axis.set_xticks(range(len(names)), [f"cluster {name}" for name in names], fontsize=8)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(0, 130)
    axes[0].legend(fontsize=7, loc="upper left", ncols=4)
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
