"""The device over time, one lane for each contender."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.sweep.contenders import Sweep

_COLOURS = (("began", "prepared", "#c9d3e6", "imports and loads"),
            ("prepared", "first_step", "#f0d9a8", "waits for the device"),
            ("first_step", "trained", "#2c7fb8", "trains"),
            ("trained", "saved", "#9bc9a5", "saves"))  # fmt: skip


def draw(sweeps: Mapping[str, Sweep], path: Path) -> None:
    """Draw one sweep of each contender; thick bars are the device, thin ones what the runs do beside it.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.0, 1.3 + 0.9 * len(sweeps)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for lane, sweep in enumerate(sweeps.values()):
        for number, run in enumerate(sweep.runs):
            for first, last, colour, label in _COLOURS:
                begin, end = getattr(run, first) - sweep.submitted, getattr(run, last) - sweep.submitted
                trains = first == "first_step"
                # Runs beside the device overlap: they take turns in three rows under it.
                height, middle = (0.4, lane - 0.2) if trains else (0.1, lane + 0.1 + 0.14 * (number % 3))
                named = label if lane == 0 and number == 0 else None
                axes.barh(middle, end - begin, left=begin, height=height, color=colour, label=named,
                          edgecolor="white", linewidth=0.5)  # fmt: skip
    axes.set_yticks(range(len(sweeps)), list(sweeps))
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the submission of all runs")
    axes.set_xlim(left=0.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(_COLOURS), frameon=False)
    figure.savefig(path)
