"""What came out of a simulation as one picture: completion times, what the devices did, how many jobs waited.

Needs matplotlib. Up to 32 devices get a lane each, with a colour for each job if they are few; of larger clusters the
picture shows how much of each node, or of each group of nodes, was in use.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prefect_gpu.reporting.figure import frame, new_figure
from prefect_gpu.reporting.style import WAITING_COLOUR
from prefect_gpu.simulation.results import Results, Span
from prefect_gpu.simulation.run import Outcome
from prefect_gpu.units import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from prefect_gpu.scheduling.model.cluster import Node

LANES = 32  # devices up to which each gets a lane of its own
BARS = 4000  # spans up to which they are drawn one by one
ROWS, COLUMNS = 40, 480  # of the picture of a large cluster
_JOB_COLOURS = ("#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#F0E442", "#8C6BB1")
_BLUE = "#0072B2"
_TICKS = (
    (1.0, "1 s"), (10.0, "10 s"), (60.0, "1 min"), (600.0, "10 min"), (3600.0, "1 h"), (6 * 3600.0, "6 h"),
    (86400.0, "1 day"), (10 * 86400.0, "10 days"), (100 * 86400.0, "100 days"),
)  # fmt: skip
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def write_simulation_png(results: Results, nodes: Sequence[Node], path: Path, *, title: str) -> None:
    """Draw the results into a file.

    Args:
        results: Made with ``keep_timeline``.
        nodes: The cluster that was simulated.
        path: Where the picture goes.
        title: Above it.

    Raises:
        MissingLibrary: matplotlib is not installed.
        ValueError: No job has finished, so there is nothing to draw.
        OSError: The file cannot be written.
    """
    finished = results.finished
    if not finished:
        raise ValueError("no job has finished: there is nothing to draw.")
    figure = new_figure(12.0, 10.0)
    times, devices, queue = figure.subplots(
        3, 1,
        gridspec_kw={"height_ratios": [2.6, 4.2, 1.6], "hspace": 0.38, "left": 0.09, "right": 0.92, "top": 0.91,
                     "bottom": 0.06},
    )  # fmt: skip
    start = min(outcome.submit_s for outcome in finished)
    end = max(outcome.end_s or 0.0 for outcome in finished)
    scale, unit = next(((size, name) for size, name in _UNITS if end - start >= 3 * size), _UNITS[-1])
    draw_completion_times(times, finished)
    draw_devices(devices, results.timeline, nodes, start, end, scale)
    draw_queue(queue, results.queue_lengths, start, end, scale)
    queue.set_xlabel(f"{unit} since the first submission")
    figure.text(0.012, 0.972, title, fontsize=15, fontweight="bold", va="center", parse_math=False)
    busy = results.summary()["gpu_busy_fraction"]
    jobs, gpus = plural(len(finished), "job"), plural(results.devices, "device")
    words = f"{jobs} on {gpus} in {duration(end - start)}, {busy:.0%} busy"
    figure.text(0.012, 0.946, words, fontsize=10, color="0.35", va="center")
    figure.savefig(path, format="png")


def draw_completion_times(axes: Axes, finished: Sequence[Outcome]) -> None:
    """Which part of the jobs was complete within a time, on a logarithmic scale, with the mean and some quantiles."""
    times = np.sort(np.array([outcome.jct_s for outcome in finished]))
    axes.step(np.maximum(times, 1.0), np.arange(1, len(times) + 1) / len(times), where="post", color=_BLUE, lw=2)
    mean_s = float(times.mean())
    marks = [(f"p{q}", float(np.quantile(times, q / 100, method="inverted_cdf")), q / 100) for q in (50, 90, 99)]
    marks.append(("mean", mean_s, float(np.searchsorted(times, mean_s, side="right") / len(times))))
    for (name, at_s, height), colour, shape in zip(
        marks, ("#56B4E9", "#009E73", "0.2", "#D55E00"), "ovsD", strict=True
    ):
        label = f"{name} {duration(at_s)}"
        axes.plot([max(at_s, 1.0)], [height], shape, color=colour, ms=7, mec="white", zorder=3, label=label)
    axes.legend(loc="upper left", frameon=False, fontsize=10, handletextpad=0.2)
    axes.set_xscale("log")
    low, high = max(float(times[0]), 1.0), max(float(times[-1]), 1.0)
    axes.set_xlim(low / 1.2, high * 1.2)
    ticks = [(at_s, name) for at_s, name in _TICKS if low / 1.2 <= at_s <= high * 1.2]
    if len(ticks) > 1:
        axes.set_xticks([at_s for at_s, _ in ticks], [name for _, name in ticks])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xlabel("seconds", labelpad=1)
    axes.set_ylim(0, 1.03)
    axes.set_ylabel("part of the jobs")
    axes.set_title(
        "Completion times: the part of the jobs that end within so long after their submission", fontsize=11, loc="left"
    )
    axes.grid(color="0.9")
    frame(axes, "bottom", "left")


def duration(seconds: float) -> str:
    """A duration in one unit: ``42 s``, ``3.2 min``, ``27 h``, ``94.6 days``."""
    for size, unit in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"


def draw_devices(
    axes: Axes, timeline: Sequence[Span], nodes: Sequence[Node], start: float, end: float, scale: float
) -> None:
    """Lanes for each device, or for large clusters how much of each row of nodes was in use."""
    names = [device.id for node in nodes for device in node.devices]
    training = [span for span in timeline if span.training]
    if len(names) <= LANES and len(timeline) <= BARS:
        _draw_lanes(axes, timeline, names, start, scale)
        axes.set_title("Devices: each job has a colour; grey is time without training", fontsize=11, loc="left")
    else:
        labels, row_of = rows_of(nodes)
        picture = occupation(training, row_of, len(labels), start, end)
        shown = axes.imshow(
            picture, aspect="auto", vmin=0.0, vmax=1.0, cmap="Blues", interpolation="nearest",
            extent=(0.0, (end - start) / scale, len(labels) - 0.5, -0.5),
        )  # fmt: skip
        bar = axes.figure.colorbar(shown, cax=axes.inset_axes((1.012, 0.0, 0.014, 1.0)))
        bar.set_label("part of the devices that trained", fontsize=9)
        step = max(1, -(-len(labels) // 20))
        axes.set_yticks(range(0, len(labels), step), labels[::step], fontsize=8)
        what = "device" if len(labels) == len(names) else "node" if len(labels) == len(nodes) else "group of nodes"
        axes.set_title(f"Use of each {what}, over time", fontsize=11, loc="left")
    axes.set_xlim(0, (end - start) / scale)
    frame(axes, "bottom", "left")


def rows_of(nodes: Sequence[Node]) -> tuple[list[str], dict[str, tuple[int, float]]]:
    """The rows of the picture of a large cluster.

    Returns:
        The names of the rows, and for each device (its row, the part of the row that it makes).
    """
    devices = [device.id for node in nodes for device in node.devices]
    if len(devices) <= LANES:
        return devices, {device: (row, 1.0) for row, device in enumerate(devices)}
    each = -(-len(nodes) // ROWS)
    groups = [nodes[at : at + each] for at in range(0, len(nodes), each)]
    labels = [group[0].id if each == 1 else f"{group[0].id}–{group[-1].id}" for group in groups]
    row_of: dict[str, tuple[int, float]] = {}
    for row, group in enumerate(groups):
        ids = [device.id for node in group for device in node.devices]
        row_of.update((device, (row, 1.0 / len(ids))) for device in ids)
    return labels, row_of


def occupation(
    timeline: Sequence[Span], row_of: dict[str, tuple[int, float]], rows: int, start: float, end: float
) -> np.ndarray[Any, Any]:
    """How much of each row was in use in each of :data:`COLUMNS` equal parts of the time.

    Several jobs that share a device count together as at most the whole of their row.

    Returns:
        Parts of the row, 0 to 1, of shape (rows, COLUMNS).
    """
    width = (end - start) / COLUMNS or 1.0
    picture = np.zeros((rows, COLUMNS))
    if not timeline:
        return picture
    row = np.array([row_of[span.device][0] for span in timeline])
    part = np.array([row_of[span.device][1] for span in timeline])
    begin = np.clip((np.array([span.start_s for span in timeline]) - start) / width, 0, COLUMNS)
    finish = np.clip((np.array([span.end_s for span in timeline]) - start) / width, 0, COLUMNS)
    # The use of a column is the rise, over that column, of the integral of what was in use. A span adds a ramp to it,
    # which two corners describe: each adds its slope to all columns behind it, and the rest of it to its own.
    change = np.zeros((rows, COLUMNS + 2))
    for corner, sign in ((begin, 1.0), (finish, -1.0)):
        column = np.minimum(corner.astype(int), COLUMNS)
        inside = corner - column
        np.add.at(change, (row, column), sign * part * (1.0 - inside))
        np.add.at(change, (row, column + 1), sign * part * inside)
    return np.clip(np.cumsum(change, axis=1)[:, :COLUMNS], 0.0, 1.0)


def draw_queue(axes: Axes, lengths: Sequence[tuple[float, int]], start: float, end: float, scale: float) -> None:
    """How many jobs waited."""
    at_once = {start: 0, **dict(lengths)}  # of the changes of one moment, the last
    at_once.setdefault(end, list(at_once.values())[-1])
    times, counts = np.array(list(at_once)), np.array(list(at_once.values()))
    axes.fill_between((times - start) / scale, counts, step="post", color=WAITING_COLOUR, alpha=0.75, lw=0)
    axes.set_xlim(0, (end - start) / scale)
    axes.set_ylim(0, max(1.2, counts.max() * 1.1))
    axes.set_title("Waiting jobs", fontsize=11, loc="left")
    axes.grid(color="0.9")
    frame(axes, "bottom", "left")


def _draw_lanes(axes: Axes, timeline: Sequence[Span], names: Sequence[str], start: float, scale: float) -> None:
    lane = {name: number for number, name in enumerate(names)}
    colours: dict[str, str] = {}
    for trains in (False, True):  # who had a device is drawn first, who trained there over it
        for name, number in lane.items():
            spans = [span for span in timeline if span.device == name and span.training == trains]
            for span in spans:
                colours.setdefault(span.job, _JOB_COLOURS[len(colours) % len(_JOB_COLOURS)])
            axes.broken_barh(
                [((span.start_s - start) / scale, (span.end_s - span.start_s) / scale) for span in spans],
                (number - 0.4, 0.8),
                facecolors=[colours[span.job] if trains else "0.75" for span in spans],
                edgecolor="white",
                linewidth=0.3,
            )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
