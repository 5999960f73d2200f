"""What the timeline's pictures share: sentences, and the colours of what is no phase."""

from __future__ import annotations

from datetime import datetime

from prefect_gpu.phases import PHASES
from prefect_gpu.reporting.spans import TOLD, Bar, Lane, Timeline, phase_seconds
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.units import format_seconds, plural

WAITING_COLOUR = "#CC79A7"
OUTAGE_COLOUR = "#B8B8B8"
OUTAGE_MEANING = "Node is down"

_CLOCK_FROM_S = 900.0


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
    words = f"{plural(count, 'run')} on {len(lanes)} {kind} in "
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
    words = [
        f"{share:.0%} {PHASES[name].lower}" for name, share in shares.items() if share >= 0.005 or name == "training"
    ]
    idle = 1.0 - lane.share(TOLD, timeline.start, timeline.end)
    return "\n".join([*words, f"{idle:.0%} idle"] if idle >= 0.005 else words)


def bar_title(bar: Bar) -> str:
    """The run's name, with the number of the attempt if it is not the first."""
    name = bar.row.run_name or bar.row.flow_name
    return name if bar.row.attempt == 1 else f"{name} #{bar.row.attempt}"


def spent(row: HistoryRow) -> str:
    """Where a run's time went: ``waited 3.0 s, prepared 2.1 s, trained 40 s``."""
    told = [("waited", row.waited_s), *((PHASES[phase].past, s) for phase, s in phase_seconds(row).items())]
    return ", ".join(f"{word} {format_seconds(seconds)}" for word, seconds in told if seconds is not None)
