"""How a contention-aware policy learned, as a small PNG, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.reporting.figure import frame, new_figure

_PANELS = (
    ("reward a round", {"reward": "reward"}, 1.0),
    ("1,000 s", {"running_s": "running time", "completion_s": "completion"}, 1000.0),
    ("part", {"ratio": "throughput ratio", "used": "GPUs in use"}, 1.0),
)
_DRAWN = (("#0072B2", "o"), ("#D55E00", "s"))


def write_learning_png(record: Mapping[str, Any], path: Path) -> None:
    """Draw what a training reached on its validation sets, step by step, and which weights were chosen.

    Args:
        record: That of :meth:`prefect_gpu.papers.deepshare.learning.train.Trained.record`.
        path: Where the picture goes.

    Raises:
        MissingLibrary: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    looks: Sequence[Mapping[str, float]] = record["validation"]
    steps = [one["steps"] / 1000 for one in looks]
    figure = new_figure(9.0, 2.8, dpi=100)
    places = {"left": 0.07, "right": 0.985, "top": 0.76, "bottom": 0.19, "wspace": 0.28}
    for axes, (title, columns, unit) in zip(figure.subplots(1, 3, gridspec_kw=places), _PANELS, strict=True):
        for (column, name), (colour, marker) in zip(columns.items(), _DRAWN, strict=False):
            values = [one[column] / unit for one in looks]
            axes.plot(steps, values, color=colour, marker=marker, ms=3.5, lw=1.5, label=name)
        axes.axvline(record["weights_at_step"] / 1000, color="0.4", lw=1, ls="--")
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_xlabel("1,000 steps", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(color="0.9")
        frame(axes, "bottom", "left")
        if len(columns) > 1:
            axes.legend(frameon=False, fontsize=8)
    words = f"W1 = {record['w1']}, seed {record['seed']}: validation sets; dashed: the weights that were chosen"
    figure.text(0.012, 0.93, words, fontsize=10, va="center")
    figure.savefig(path, format="png")
