"""Draws the picture of Pollux' world into docs/images, from what the benchmark has measured. Needs matplotlib.

python -m benchmarks.frontier.pollux --traces DIR --json > RESULT.json
python docs/frontier/draw_pollux.py RESULT.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).resolve().parents[1] / "images" / "frontier-pollux.png"
NAMES = {
    "tiresias": "Tiresias",
    "optimus": "Optimus, knows all",
    "pollux": "Pollux",
    "learned": "adaptive, speeds learned",
    "true": "adaptive, speeds known",
}


def main(result: Path) -> None:
    """Mean completion times of both loads, side by side."""
    measured = json.loads(result.read_text())["mean, p99 and makespan (s), all"]
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), sharey=True)
    for axis, load in zip(axes, ("1.0", "2.0"), strict=True):
        means = [measured[f"{policy}-{load}"][0] for policy in NAMES]
        bars = axis.barh([*NAMES.values()], means, color=[*["lightgrey"] * 3, "C2", "C2"])
        axis.bar_label(bars, [f"{mean:,}" for mean in means], padding=3, fontsize=8)
        axis.set_xlim(0, 1.3 * max(means))
        axis.set_title("160 jobs (load 1.0)" if load == "1.0" else "320 jobs (load 2.0)", loc="left", fontsize=9)
        axis.set_xlabel("mean completion time, seconds")
    axes[0].invert_yaxis()  # both share it
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
