"""Draws the picture of the rigid jobs into docs/images, from what the benchmark has measured. Needs matplotlib.

python -m benchmarks.frontier --only cluster --traces DIR --json > RESULT.json
python -m benchmarks.frontier.bound --traces DIR --json > BOUND.json
python docs/frontier/draw_cluster.py RESULT.json BOUND.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

IMAGE = Path(__file__).resolve().parents[1] / "images" / "frontier-cluster.png"
PANELS = {
    ", mean over best of SRSF, SRTF": "mean JCT ÷ the better of SRSF and SRTF; | bound",
    ", p99 over SRSF's": "99th percentile ÷ SRSF",
}
BOUNDED = ", mean over best of SRSF, SRTF"
OVER_BEST = "lower bound over best of SRSF, SRTF"
BEFORE = "cluster: "


def main(result: Path, bound: Path) -> None:
    """Each case is a bar, which begins at 1: to the left of it ours is better. A black line is the lower bound."""
    bounds = json.loads(bound.read_text())[OVER_BEST]
    claims = {claim["name"]: claim["value"] for claim in json.loads(result.read_text())["claims"]}
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), sharey=True)
    for axis, (ending, title) in zip(axes, PANELS.items(), strict=True):
        found = {
            name.removeprefix(BEFORE).removesuffix(ending): value
            for name, value in claims.items()
            if name.endswith(ending) and " on " in name and "durations" not in name
        }
        axis.barh([*found], [value - 1 for value in found.values()], left=1, color="C2")
        for name, value in found.items():  # to the right of the bar: the bound is to the left
            axis.annotate(
                f"{value:.3g}", (max(1, value), name), (3, 0), textcoords="offset points", va="center", size=7
            )
        axis.axvline(1, color="black", linewidth=0.8)
        least = min(found.values())
        if ending == BOUNDED:
            axis.scatter([bounds[name] for name in found], [*found], marker="|", s=60, color="black", zorder=3)
            least = min(least, *bounds.values())
        axis.set_xlim(least - 0.2 * (1.06 - least), 1.1)
        axis.tick_params(labelsize=7)
        axis.set_title(title, loc="left", fontsize=9)
    axes[0].invert_yaxis()  # both share it
    figure.tight_layout()
    figure.savefig(IMAGE, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
