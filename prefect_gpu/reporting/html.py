"""The timeline as one HTML page that needs nothing else, not even a network, with plotly."""

from __future__ import annotations

from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import Any

from prefect_gpu.phases import FAILED, PHASES
from prefect_gpu.reporting import style
from prefect_gpu.reporting.spans import TOLD, Bar, Lane, Span, Timeline
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.units import format_seconds, plural

_LANE_PIXELS = 64
_QUEUE_PIXELS = 110
_AROUND_PIXELS = 175


def write_html(timeline: Timeline, path: Path, *, title: str = "What the devices did") -> None:
    """Write the timeline as a page to look into: point at a bar to see everything about its run, drag to zoom.

    Raises:
        ImportError: plotly is not installed.
        OSError: The file cannot be written.
    """
    figure = _figure(timeline, title)
    body = figure.to_html(
        full_html=False, include_plotlyjs=True, include_mathjax=False,
        config={"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
    )  # fmt: skip
    path.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<style>body{margin:1rem;font-family:sans-serif}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )


def _figure(timeline: Timeline, title: str) -> Any:
    from plotly.subplots import make_subplots

    tracks = sum(len(lane.tracks) for lane in timeline.lanes)
    lanes_height, queue_height = _LANE_PIXELS * tracks, _QUEUE_PIXELS
    total = lanes_height + queue_height
    figure = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.06,
        row_heights=[lanes_height / total, queue_height / total],
    )
    clock = style.uses_clock(timeline)
    names, notes = _add_lanes(figure, timeline, clock)
    _add_outages(figure, timeline, clock)
    _add_queue(figure, timeline, clock)
    figure.update_layout(
        title={
            "text": f"<b>{escape(title)}</b><br><sup>{escape(style.summary(timeline))}. "
            "Point at a bar to see its run; drag to zoom, double-click to go back.</sup>",
            "x": 0.01, "xanchor": "left", "yref": "container", "y": 1 - 30 / (total + _AROUND_PIXELS),
        },
        height=total + _AROUND_PIXELS, template="plotly_white", barmode="overlay",
        uniformtext={"minsize": 9, "mode": "hide"},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom"},
        margin={"l": 130, "r": 130, "t": 105, "b": 60}, hoverlabel={"align": "left"},
    )  # fmt: skip
    figure.update_yaxes(
        row=1, col=1, tickvals=list(names), ticktext=[escape(name) for name in names.values()],
        range=[tracks - 0.5, -0.5], showgrid=False, zeroline=False, fixedrange=True,
    )  # fmt: skip
    figure.update_yaxes(
        row=2, col=1, title="runs waiting", rangemode="tozero", nticks=4, tickformat="d", fixedrange=True,
        range=[0, max(1.2, timeline.most_waiting * 1.15)],
    )  # fmt: skip
    figure.update_xaxes(showgrid=True, zeroline=False, range=[_x(timeline.start, timeline, clock),
                                                              _x(timeline.end, timeline, clock)])  # fmt: skip
    figure.update_xaxes(row=2, col=1, title="time of day" if clock else "seconds from the beginning")
    for y, note in notes.items():
        figure.add_annotation(
            x=1.005, xref="paper", xanchor="left", y=y, yref="y", text=escape(note).replace("\n", "<br>"),
            showarrow=False, align="left", font={"size": 11, "color": "#444"},
        )  # fmt: skip
    return figure


def _add_lanes(figure: Any, timeline: Timeline, clock: bool) -> tuple[dict[float, str], dict[float, str]]:
    """One trace per phase, so that the legend can switch them. Returns names and notes by their height."""
    several_nodes = len({lane.node for lane in timeline.lanes}) > 1
    names: dict[float, str] = {}
    notes: dict[float, str] = {}
    placed: list[tuple[int, Lane, Bar]] = []
    y = 0
    for lane in timeline.lanes:
        middle = y + (len(lane.tracks) - 1) / 2
        names[middle] = style.lane_title(lane, several_nodes=several_nodes)
        notes[middle] = style.lane_note(lane, timeline)
        for track in lane.tracks:
            placed += [(y, lane, bar) for bar in track]
            y += 1
    for phase in TOLD:
        shown = [(y, lane, bar, span) for y, lane, bar in placed for span in bar.spans if span.phase == phase]
        if shown:
            figure.add_bar(
                orientation="h", name=PHASES[phase].legend, marker_color=PHASES[phase].colour, width=0.8,
                marker_line={
                    "color": [FAILED.colour if bar.failed else "#333" for *_, bar, _ in shown],
                    "width": [2.5 if bar.failed else 0.6 for *_, bar, _ in shown],
                },
                y=[y for y, *_ in shown],
                base=[_x(span.start, timeline, clock) for *_, span in shown],
                x=[span.seconds * (1000 if clock else 1) for *_, span in shown],
                text=[_inside(bar, span) for *_, bar, span in shown],
                textposition="inside", insidetextanchor="middle", textangle=0, constraintext="inside", cliponaxis=True,
                textfont={"color": PHASES[phase].ink, "size": 11},
                hovertext=[_hover(lane, bar, span) for _, lane, bar, span in shown], hoverinfo="text",
                row=1, col=1,
            )  # fmt: skip
    return names, notes


def _add_outages(figure: Any, timeline: Timeline, clock: bool) -> None:
    """Grey over the lanes of a node that was not there; the pool may have believed for a while that runs went on."""
    y = 0
    heights: dict[str, tuple[int, int]] = {}
    for lane in timeline.lanes:
        heights[lane.node] = (heights.get(lane.node, (y, y))[0], y + len(lane.tracks))
        y += len(lane.tracks)
    for outage in timeline.outages:
        top, bottom = heights[outage.node]
        end = timeline.end if outage.end is None else min(outage.end, timeline.end)
        figure.add_shape(
            type="rect", x0=_x(outage.start, timeline, clock), x1=_x(end, timeline, clock), y0=top - 0.5,
            y1=bottom - 0.5, fillcolor=style.OUTAGE_COLOUR, opacity=0.45, line_width=0,
            label={"text": escape(f"{outage.node} is down"), "font": {"size": 12}}, row=1, col=1,
        )  # fmt: skip


def _add_queue(figure: Any, timeline: Timeline, clock: bool) -> None:
    points = [(timeline.start, 0), *timeline.waiting, (timeline.end, 0)]
    figure.add_scatter(
        x=[_x(at, timeline, clock) for at, _ in points], y=[count for _, count in points], mode="lines",
        line={"shape": "hv", "width": 0, "color": style.WAITING_COLOUR}, fill="tozeroy",
        name="Waiting for a device", hovertemplate="%{y} waiting<extra></extra>", row=2, col=1,
    )  # fmt: skip


def _x(at: float, timeline: Timeline, clock: bool) -> float | str:
    if not clock:
        return at - timeline.start
    # Without an offset: plotly shows what it is told, and that shall be this machine's time of day. It is as at the
    # beginning throughout, so that no hour is there twice where clocks are changed.
    zone = datetime.fromtimestamp(timeline.start, timezone.utc).astimezone().tzinfo
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None).isoformat(timespec="milliseconds")


def _inside(bar: Bar, span: Span) -> str:
    longest = max(bar.spans, key=lambda other: other.seconds)
    return escape(style.bar_title(bar)).replace(" ", "<br>", 1) if span is longest else ""


def _hover(lane: Lane, bar: Bar, span: Span) -> str:
    row = bar.row
    lines = [f"<b>{escape(style.bar_title(bar))}</b> ({escape(row.flow_name)})", f"on {escape(lane.label)}"]
    lines.append(style.spent(row))
    lines.append(f"here: {PHASES[span.phase].lower}, {format_seconds(span.seconds)}")
    if row.final_loss is not None:
        steps = f" after {plural(row.steps_done, 'step')}" if row.steps_done is not None else ""
        lines.append(f"loss {row.final_loss:.4g}{steps}")
    lines.append(_parameters(row))
    if row.outcome != "completed":
        lines.append(f"<b>{row.outcome}</b>: {escape((row.message or '').strip().partition(chr(10))[0][:120])}")
    return "<br>".join(line for line in lines if line)


def _parameters(row: HistoryRow) -> str:
    short = [f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
             for name, value in row.parameters.items()]  # fmt: skip
    return "<br>".join(escape(text if len(text) <= 60 else text[:59] + "…") for text in short[:12])
