"""The timeline as a PNG, with matplotlib."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_gpu.phases import FAILED, PHASES
from prefect_gpu.reporting import style
from prefect_gpu.reporting.figure import frame, new_figure
from prefect_gpu.reporting.spans import TOLD, Bar, Outage, Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 13.0  # inches
_TRACK_HEIGHT = 0.8
_NODE_GAP = 0.35  # between the lanes of two nodes, in tracks


def write_png(timeline: Timeline, path: Path, *, title: str = "What the devices did") -> None:
    """Draw the timeline into a file.

    Raises:
        MissingLibrary: matplotlib is not installed.
        OSError: The file cannot be written.
    """
    tracks = sum(len(lane.tracks) for lane in timeline.lanes)
    lanes_height, queue_height = 0.55 * tracks + 0.4 * len(timeline.lanes) + 0.2 * len(timeline.nodes), 1.1
    figure = new_figure(_WIDTH, lanes_height + queue_height + 2.1)
    height = figure.get_figheight()
    lanes, queue = figure.subplots(
        2, 1, sharex=True,
        gridspec_kw={"height_ratios": [lanes_height, queue_height], "hspace": 0.35 / (height / 2),
                     "left": 0.12, "right": 0.89, "top": 1 - 1.25 / height, "bottom": 0.6 / height},
    )  # fmt: skip
    _draw_lanes(lanes, timeline)
    _draw_queue(queue, timeline)
    _draw_time_axis(queue, timeline)
    figure.text(0.012, 1 - 0.33 / height, title, fontsize=15, fontweight="bold", va="center", parse_math=False)
    figure.text(0.012, 1 - 0.62 / height, style.summary(timeline), fontsize=10, color="0.35", va="center")
    _draw_legend(figure, timeline, 1 - 0.96 / height)
    figure.savefig(path, format="png")


def _draw_lanes(axes: Axes, timeline: Timeline) -> None:
    several_nodes = len({lane.node for lane in timeline.lanes}) > 1
    left, right = timeline.start, timeline.end
    points_per_second = axes.get_position().width * _WIDTH * 72 / max(right - left, 1e-9)
    y, ticks, names = 0.0, [], []
    node, heights = "", dict[str, tuple[float, float]]()
    for lane in timeline.lanes:
        if several_nodes and node and lane.node != node:
            y -= _NODE_GAP
        node = lane.node
        top = y
        for track in lane.tracks:
            for bar in track:
                _draw_bar(axes, bar, y, points_per_second)
            y -= 1.0
        middle = (top + y + 1.0) / 2
        axes.axhspan(y + 0.5, top + 0.5, color="0.965", zorder=0, lw=0)
        ticks.append(middle)
        names.append(lane.label)
        heights[node] = (y + 0.5, heights.get(node, (0.0, top + 0.5))[1])
        note = style.lane_note(lane, timeline)
        axes.annotate(note, (1.008, middle), xycoords=("axes fraction", "data"), va="center", fontsize=9, color="0.25")
        y -= 0.4
    axes.set_yticks(ticks, names, fontsize=11, parse_math=False)
    axes.set_ylim(y + 0.8, 0.6)
    if several_nodes:
        _draw_nodes(axes, heights)
    for outage in timeline.outages:
        _draw_outage(axes, outage, heights[outage.node], right)
    margin = 0.005 * (right - left) or 1.0
    axes.set_xlim(left - margin, right + margin)
    axes.tick_params(left=False, bottom=False, labelbottom=False)
    axes.grid(axis="x", color="0.87", zorder=0.5)
    frame(axes)


def _draw_nodes(axes: Axes, heights: dict[str, tuple[float, float]]) -> None:
    """The nodes' names, each beside a line along its lanes."""
    for node, (bottom, top) in heights.items():
        where = axes.get_yaxis_transform()
        axes.plot([-0.088, -0.088], [bottom, top], transform=where, color="0.6", lw=1.2, clip_on=False)
        axes.text(
            -0.094, (bottom + top) / 2, node, transform=where, ha="right", va="center", fontsize=11, fontweight="bold",
            parse_math=False,
        )  # fmt: skip


def _draw_outage(axes: Axes, outage: Outage, height: tuple[float, float], right: float) -> None:
    """Over the bars: the pool may have believed for a while that runs went on."""
    bottom, top = height
    end = right if outage.end is None else min(outage.end, right)
    axes.broken_barh(
        [(outage.start, end - outage.start)], (bottom, top - bottom), facecolor=(0.9, 0.9, 0.9, 0.45), hatch="///",
        edgecolor=style.OUTAGE_COLOUR, lw=0, zorder=3.5,
    )  # fmt: skip


def _draw_bar(axes: Axes, bar: Bar, y: float, points_per_second: float) -> None:
    for span in bar.spans:
        axes.barh(
            y, span.seconds, left=span.start, height=_TRACK_HEIGHT, color=PHASES[span.phase].colour, zorder=2, lw=0
        )
    axes.barh(
        y, bar.end - bar.start, left=bar.start, height=_TRACK_HEIGHT, fill=False, zorder=3,
        edgecolor=FAILED.colour if bar.failed else "0.25", linewidth=2.2 if bar.failed else 0.7,
    )  # fmt: skip
    if bar.failed:
        axes.plot([bar.end], [y], marker="X", markersize=9, color=FAILED.colour, zorder=5, mec="white")
    longest = max(bar.spans, key=lambda span: span.seconds)
    room = int(longest.seconds * points_per_second / 4.6)  # so wide is a letter of 8 points
    _write_inside(axes, bar, longest, y, room)


def _write_inside(axes: Axes, bar: Bar, span: Span, y: float, room: int) -> None:
    """The run's name in its longest phase, in as many lines and as much of it as there is room for."""
    words = style.bar_title(bar).split()
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= room:
            lines[-1] += " " + word
        else:
            lines.append(word)
    kept = [line for line in lines[:3] if len(line) <= room]
    if kept != lines[: len(kept)] or len(kept) < min(2, len(lines)):
        return  # half a word helps nobody
    axes.text(
        (span.start + span.end) / 2, y, "\n".join(kept), ha="center", va="center", fontsize=8, zorder=4,
        color=PHASES[span.phase].ink, linespacing=1.0, clip_on=True, parse_math=False,
    )  # fmt: skip


def _draw_queue(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.ticker import MaxNLocator

    points = [(timeline.start, 0), *timeline.waiting, (timeline.end, 0)]
    times, counts = [at for at, _ in points], [count for _, count in points]
    axes.fill_between(times, counts, step="post", color=style.WAITING_COLOUR, alpha=0.75, lw=0, zorder=2)
    axes.set_ylim(0, max(1.2, timeline.most_waiting * 1.15))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=2))
    axes.set_ylabel("runs\nwaiting", rotation=0, ha="right", va="center", fontsize=11)
    axes.grid(color="0.87", zorder=0.5)
    frame(axes, "bottom")


def _draw_time_axis(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if style.uses_clock(timeline):
        day = timeline.end - timeline.start > 86400
        pattern = "%m-%d %H:%M" if day else "%H:%M"
        axes.xaxis.set_major_locator(MaxNLocator(10))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: datetime.fromtimestamp(at).strftime(pattern)))
        axes.set_xlabel("time of day")
        return
    step = _round_step((timeline.end - timeline.start) / 12)
    count = int((timeline.end - timeline.start) / step) + 1
    axes.xaxis.set_major_locator(FixedLocator([timeline.start + step * i for i in range(count)]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at - timeline.start:g}"))
    axes.set_xlabel("seconds from the beginning")


def _round_step(seconds: float) -> float:
    return next((step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120) if step >= seconds), 300)


def _draw_legend(figure: Any, timeline: Timeline, y: float) -> None:
    from matplotlib.patches import Patch

    used = {span.phase for bar in timeline.bars for span in bar.spans}
    handles = [Patch(color=PHASES[one].colour, label=PHASES[one].legend) for one in TOLD if one in used]
    if any(bar.failed for bar in timeline.bars):
        handles.append(Patch(facecolor="white", edgecolor=FAILED.colour, lw=2.2, label="Did not complete"))
    if timeline.outages:
        handles.append(Patch(facecolor="0.93", edgecolor=style.OUTAGE_COLOUR, hatch="////", label=style.OUTAGE_MEANING))
    handles.append(Patch(color=style.WAITING_COLOUR, alpha=0.75, label="Waiting for a device"))
    roomy = len(handles) <= 6
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=(0.005, y), ncols=len(handles), frameon=False,
        fontsize=10 if roomy else 8.5, handlelength=1.2, handleheight=1.0, columnspacing=1.6 if roomy else 1.1,
    )  # fmt: skip
