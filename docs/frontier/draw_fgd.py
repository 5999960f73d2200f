"""Draws the picture of FGD's world into docs/images, from what the benchmark has measured. Needs matplotlib.

python -m benchmarks.frontier.fgd --traces DIR --json > RESULT.json
python docs/frontier/draw_fgd.py RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).resolve().parents[1] / "images" / "frontier-fgd.png"
KINDS = {
    "BestFit": ("bestfit", "lightgrey"),
    "FGD": ("fgd", "grey"),
    "ours, from 400 pods": ("ours, learned", "C1"),
    "ours": ("ours", "C2"),
}
TITLES = ("allocated when 100 % was asked for (%)", "when 130 % was asked for")


def main(result: Path) -> None:
    """The workloads at 100 and at 130 per cent."""
    rows = json.loads(result.read_text())["allocated at 100, 130"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 2.8), sharey=True)
    width = 0.8 / len(KINDS)
    for step, (axis, title) in enumerate(zip(axes, TITLES, strict=True)):
        for number, (kind, (key, colour)) in enumerate(KINDS.items()):
            found = [row[key][step] for row in rows.values()]
            places = [at + (number - (len(KINDS) - 1) / 2) * width for at in range(len(rows))]
            bars = axis.bar(places, found, width, label=kind, color=colour)
            axis.bar_label(bars, [f"{value:.1f}" for value in found], padding=1, fontsize=5)
        axis.set_xticks(range(len(rows)), [name.split()[0] for name in rows], fontsize=7)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(75, 103)
    axes[1].legend(fontsize=7, loc="upper right", ncols=4)
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
