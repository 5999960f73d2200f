"""Pictures of what the kit found, where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import Machine
from benchmarks.gpu.scale import Part

_OURS, _OTHER = "#3b6ea8", "#b8bec6"


def draw(parts: dict[str, Part], folder: Path, machine: Machine) -> list[str] | str:
    """One PNG for each part that can be drawn.

    Returns:
        Their paths, or why there are none.
    """
    try:
        import matplotlib
    except ImportError:
        return "none: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, paint in _PAINTERS.items():
        if name not in parts:
            continue
        figure, axes = pyplot.subplots(figsize=(7, 3.2), layout="constrained")
        paint(axes, parts[name].figures)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.text(0.995, 0.005, machine.words, ha="right", va="bottom", fontsize=6, color="#666666")
        path = folder / f"gpu-{name}{'-virtual' if machine.virtual else ''}.png"
        figure.savefig(path, dpi=150)
        pyplot.close(figure)
        drawn.append(str(path))
    return drawn


def _idle(axes: Any, figures: dict[str, Any]) -> None:
    modes = figures["modes"]
    names = list(modes)[::-1]
    values = [modes[name]["idle_mean_s"] for name in names]
    colours = [_OURS if name == list(modes)[-1] else _OTHER for name in names]
    bars = axes.barh(names, values, color=colours)
    axes.bar_label(bars, [f"{value:.2f} s" for value in values], padding=4)
    axes.set_xlim(0, 1.15 * max(values))
    axes.set_xlabel("seconds idle between two trainings, mean")
    axes.set_title("The device between two trainings", loc="left")


def _sharing(axes: Any, figures: dict[str, Any]) -> None:
    sets = figures["sets"]
    for offset, (way, colour) in enumerate((("exclusive", _OTHER), ("shared", _OURS))):
        places = [number + 0.38 * offset for number in range(len(sets))]
        bars = axes.bar(places, [one["total_s"][way] for one in sets.values()], 0.36, color=colour, label=way)
        axes.bar_label(bars, fmt="%.1f s", fontsize=8)
    axes.set_xticks([number + 0.19 for number in range(len(sets))], list(sets))
    axes.set_ylabel("total time, s")
    axes.set_title("Sets of trainings, one after the other and sharing the device", loc="left")
    axes.legend(frameon=False)


def _memory(axes: Any, figures: dict[str, Any]) -> None:
    tries = figures["tries"]
    for number, one in enumerate(tries):
        done = one["ended"] == "completed"
        axes.bar(number, one["granted_bytes"] / 2**20, color=_OURS if done else _OTHER, width=0.7)
        axes.text(number, one["granted_bytes"] / 2**20, one["ended"], ha="center", va="bottom", fontsize=7)
    axes.set_xticks(range(len(tries)), [f"{one['batch']}\ntry {one['try']}" for one in tries], fontsize=7)
    axes.set_ylabel("granted, MiB")
    axes.set_title("Runs of growing batch: what they were granted", loc="left")


def _cores(axes: Any, figures: dict[str, Any]) -> None:
    rates = figures["steps_per_s"]
    axes.plot(list(rates), list(rates.values()), "o-", color=_OTHER, label="tried one by one")
    chosen = figures["tuner"]["cores"]
    if chosen in rates:
        axes.plot([chosen], [rates[chosen]], "o", color=_OURS, markersize=11, label="the tuner's choice")
    axes.set_xticks(list(rates))
    axes.set_ylim(0)
    axes.set_xlabel("cores")
    axes.set_ylabel("steps a second")
    axes.set_title("An input pipeline by cores", loc="left")
    axes.legend(frameon=False)


_PAINTERS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "idle": _idle,
    "sharing": _sharing,
    "memory": _memory,
    "cores": _cores,
}
