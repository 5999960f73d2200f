"""How good the pool's estimates have been, as a PNG, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from prefect_gpu.estimation.accuracy import Comparison, Series, series, window_for
from prefect_gpu.estimation.runs import MEMORY_BYTES, TRAINING_S
from prefect_gpu.phases import FAILED, PHASES
from prefect_gpu.reporting.accuracy import COVERAGE, NAMES, percent
from prefect_gpu.reporting.figure import frame, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = {TRAINING_S: "o", MEMORY_BYTES: "D"}
_TICKS = {
    0.001: "0.1%",
    0.003: "0.3%",
    0.01: "1%",
    0.03: "3%",
    0.1: "10%",
    0.3: "30%",
    1.0: "100%",
    3.0: "300%",
    10.0: "1000%",
}
_LEAST, _MOST = min(_TICKS), max(_TICKS)  # errors beyond are drawn there
_MOST_DOTS = 1000


def write_accuracy_png(compared: Sequence[Comparison], path: Path, *, title: str, coverage: float = COVERAGE) -> None:
    """Draw the errors of estimates, and how often intervals held, run after run in the order in which they ended.

    Args:
        compared: From :func:`prefect_gpu.reporting.accuracy.comparisons`, at least one.
        title: Above the picture.
        coverage: How often the intervals are meant to hold, 0 to 1.

    Raises:
        MissingLibrary: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    figure = new_figure(9.5, 6.2)
    errors, held = figure.subplots(
        2, 1, sharex=True,
        gridspec_kw={"height_ratios": [3, 1.3], "left": 0.1, "right": 0.97, "top": 0.87, "bottom": 0.12, "hspace": 0.2},
    )  # fmt: skip
    ends = np.sort([one.ended_at for one in compared])
    window = window_for(len(compared))
    found = {target: its for target in _MARKERS if len((its := series(compared, target, window)).at)}
    _draw_errors(errors, found, ends)
    _draw_held(held, found, ends, coverage)
    _draw_axis(held, ends)
    figure.text(0.012, 0.955, title, fontsize=14, fontweight="bold", va="center", parse_math=False)
    words = f"What was expected before a run trained, beside what it needed. Lines: of {window} runs at a time"
    figure.text(0.012, 0.908, words, fontsize=10, color="0.35", va="center")
    figure.savefig(path, format="png")


def _draw_errors(axes: Axes, found: Mapping[str, Series], ends: np.ndarray) -> None:
    for target, its in found.items():
        colour, marker = _colour(target), _MARKERS[target]
        place = np.searchsorted(ends, its.at, side="right")
        some = slice(None, None, 1 + len(place) // _MOST_DOTS)
        axes.scatter(
            place[some], np.clip(its.error[some], _LEAST, _MOST), s=11, marker=marker, color=colour, alpha=0.3, lw=0,
            zorder=2,
        )  # fmt: skip
        label = f"{NAMES[target]}: median error {percent(its.median[-1])} now"
        axes.plot(place, np.clip(its.median, _LEAST, _MOST), color=colour, lw=2, zorder=3, label=label)
    axes.set_yscale("log")
    axes.set_yticks(list(_TICKS), list(_TICKS.values()))
    axes.set_yticks([], minor=True)
    axes.set_ylim(_LEAST / 1.2, _MOST * 1.2)
    axes.set_ylabel("relative error", fontsize=11)
    axes.legend(loc="upper right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=10)
    _plain(axes)


def _draw_held(axes: Axes, found: Mapping[str, Series], ends: np.ndarray, coverage: float) -> None:
    for target, its in found.items():
        if its.within is not None:
            axes.plot(np.searchsorted(ends, its.at, side="right"), its.within, color=_colour(target), lw=2, zorder=3)
    axes.axhline(coverage, color="0.25", lw=1, ls=(0, (4, 3)), zorder=2, label=f"{coverage:.0%}, the aim")
    axes.legend(loc="lower right", frameon=False, fontsize=10)
    axes.set_ylim(0, 1.06)
    axes.set_yticks([0, 0.5, 1], ["0%", "50%", "100%"])
    axes.set_ylabel("within the\ninterval", fontsize=11)
    _plain(axes)


def _draw_axis(axes: Axes, ends: np.ndarray) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    day = ends[-1] - ends[0] > 86_400

    def label(place: float, _: int) -> str:
        if not 1 <= place <= len(ends):
            return ""
        end = datetime.fromtimestamp(float(ends[int(place) - 1]))
        return f"{int(place)}\n{end.strftime('%Y-%m-%d' if day else '%H:%M')}"

    axes.set_xlim(0.5, len(ends) + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(label))
    axes.set_xlabel("finished runs, oldest first, and when they ended", fontsize=11)


def _colour(target: str) -> str:
    return PHASES["training"].colour if target == TRAINING_S else FAILED.colour


def _plain(axes: Axes) -> None:
    axes.grid(color="0.9", zorder=0.5)
    axes.tick_params(length=0)
    frame(axes)
