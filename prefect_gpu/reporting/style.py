"""Colours and words that the pictures share."""

from __future__ import annotations

from datetime import datetime

from prefect_gpu.reporting.spans import Bar, Lane, Timeline
from prefect_gpu.units import format_seconds

# From the palette of Okabe and Ito, which people with any kind of colour blindness can tell apart. The three phases
# differ in brightness too, so that a printout in grey still shows them.
COLOURS = {
    "preparing": "#E69F00",
    "training": "#0072B2",
    "saving": "#56C8A0",
    "running": "#7A7A9A",
    "ending": "#C8C8C8",
}
WAITING_COLOUR = "#CC79A7"
FAILED_COLOUR = "#D55E00"
OUTAGE_COLOUR = "#B8B8B8"
OUTAGE_MEANING = "Node is down"

MEANING = {
    "preparing": "Preparing: start, load code and data",
    "training": "Training",
    "saving": "Saving",
    "running": "Running (reports no phases)",
    "ending": "Process ends",
}

_CLOCK_FROM_S = 900.0


def ink_on(phase: str) -> str:
    """The colour of writing on a phase's colour."""
    return "white" if phase in ("training", "running") else "black"


def uses_clock(timeline: Timeline) -> bool:
    """Whether the axis shows the time of day; a short timeline counts seconds from its beginning."""
    return timeline.end - timeline.start >= _CLOCK_FROM_S


def summary(timeline: Timeline) -> str:
    """One line below the title: how much there is to see, and when it was."""
    lanes = [lane for lane in timeline.lanes if lane.device]
    virtual = [lane for lane in lanes if lane.virtual]
    kind = "devices" if len(lanes) != 1 else "device"
    if virtual:
        kind = f"virtual {kind}" if len(virtual) == len(lanes) else f"{kind}, {len(virtual)} of them virtual"
    began = datetime.fromtimestamp(timeline.start).strftime("%Y-%m-%d %H:%M:%S")
    if len(timeline.nodes) > 1:
        kind += f" of {len(timeline.nodes)} nodes"
    count = timeline.run_count
    words = f"{count} run{'s' if count != 1 else ''} on {len(lanes)} {kind} in "
    words += f"{format_seconds(timeline.end - timeline.start)}, from {began}"
    if virtual:
        words += ". Virtual devices are not GPUs: their runs train on the CPU"
    return words


def lane_title(lane: Lane, *, several_nodes: bool) -> str:
    """The lane's name, with its node where there are several."""
    return f"{lane.node}: {lane.label}" if several_nodes and lane.node else lane.label


def lane_note(lane: Lane, timeline: Timeline) -> str:
    """What the device was used for, as shares of the whole time; empty for the lane without a device."""
    if not lane.device:
        return ""
    shares = {
        phase: lane.share([phase], timeline.start, timeline.end) for phase in ("training", "running", "preparing")
    }
    shares["idle"] = 1.0 - lane.share(COLOURS, timeline.start, timeline.end)
    words = [f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005 or name == "training"]
    return "\n".join(words)


def bar_title(bar: Bar) -> str:
    """The run's name, with the number of the attempt if it is not the first."""
    name = bar.row.run_name or bar.row.flow_name
    return name if bar.row.attempt == 1 else f"{name} #{bar.row.attempt}"
