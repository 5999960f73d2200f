"""What each device did when, and how many runs waited: the geometry of a timeline, without any drawing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prefect_gpu.storage.row import HistoryRow

#: The phases that a history can tell, in their order; :data:`~prefect_gpu.phases.PHASES` says what they are.
TOLD = ("preparing", "training", "saving", "running", "ending")
REPORTED = TOLD[:3]


@dataclass(frozen=True)
class Span:
    """One phase of one run. Times are Unix seconds."""

    phase: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Bar:
    """One run on one device: its phases, one after the other."""

    row: HistoryRow
    spans: tuple[Span, ...]

    @property
    def start(self) -> float:
        """When the device was given to the run, in Unix seconds."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When the device was free again, in Unix seconds."""
        return self.spans[-1].end

    @property
    def failed(self) -> bool:
        """Whether the run did not complete."""
        return self.row.outcome != "completed"


@dataclass(frozen=True)
class Outage:
    """A time in which a node was not there. Times are Unix seconds; without an end, it has not come back."""

    node: str
    start: float
    end: float | None = None


@dataclass
class Lane:
    """What one device did. Runs that shared it lie in tracks of their own.

    Attributes:
        device: Its id; empty for runs that needed no device.
        tracks: Bars that do not overlap, in order of time; more than one track where runs shared the device.
    """

    device: str
    node: str = ""
    kind: str = ""
    virtual: bool = False
    tracks: list[list[Bar]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The lane's name for people. A virtual device always says that it is one."""
        if not self.device:
            return "no device"
        device = self.device.removeprefix(f"{self.node}/")  # as the virtual devices of a Swarm's nodes are called
        if self.virtual and "virtual" not in device:
            return f"{device} (virtual)"
        return device

    def add(self, bar: Bar) -> None:
        """Put a bar into the first track that is free; bars come in order of their start."""
        for track in self.tracks:
            if track[-1].end <= bar.start:
                track.append(bar)
                return
        self.tracks.append([bar])

    def share(self, phases: Iterable[str], start: float, end: float) -> float:
        """The share of a time in which at least one run on the device was in one of the phases, 0 to 1."""
        wanted = set(phases)
        spans = sorted(
            (max(span.start, start), min(span.end, end))
            for track in self.tracks
            for bar in track
            for span in bar.spans
            if span.phase in wanted
        )
        covered, reached = 0.0, start
        for begin, finish in spans:
            covered += max(0.0, finish - max(begin, reached))
            reached = max(reached, finish)
        return covered / (end - start) if end > start else 0.0


@dataclass(frozen=True)
class Timeline:
    """All of it.

    Attributes:
        lanes: Of each node one per device, in order of their names, then one for who held none if there is anybody.
        waiting: (time, number of runs that wait from then on), in order of time; ends with 0.
        outages: Of nodes that are shown.
    """

    lanes: tuple[Lane, ...]
    waiting: tuple[tuple[float, int], ...]
    outages: tuple[Outage, ...] = ()

    @property
    def start(self) -> float:
        """The first thing that happened, in Unix seconds."""
        return min([*(bar.start for bar in self.bars), *(at for at, _ in self.waiting[:1])])

    @property
    def end(self) -> float:
        """The last thing that happened, in Unix seconds."""
        return max(bar.end for bar in self.bars)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the lanes, in their order."""
        return tuple(dict.fromkeys(lane.node for lane in self.lanes))

    @property
    def run_count(self) -> int:
        """How many runs are shown; each attempt counts, and a run on several devices counts once."""
        return len({(bar.row.run_id, bar.row.attempt) for bar in self.bars})

    @property
    def bars(self) -> list[Bar]:
        """All bars of all lanes; a run on several devices has one on each."""
        return [bar for lane in self.lanes for track in lane.tracks for bar in track]

    @property
    def most_waiting(self) -> int:
        """The most runs that waited at one time."""
        return max((count for _, count in self.waiting), default=0)


def build_timeline(
    rows: Iterable[HistoryRow], *, without_device: bool = False, outages: Iterable[Outage] = ()
) -> Timeline | None:
    """Lay finished runs out on their devices.

    Args:
        rows: Rows of the history, in any order. Runs that were never granted a place are left out.
        without_device: Also show runs that held no device.
        outages: When nodes were not there.

    Returns:
        The timeline, or None if no run is left to show.
    """
    bars = [Bar(row, spans) for row in rows if (row.devices or without_device) and (spans := phase_spans(row))]
    bars.sort(key=lambda bar: (bar.start, bar.end))
    if not bars:
        return None
    lanes: dict[tuple[str, bool, str], Lane] = {}
    for bar in bars:
        row = bar.row
        for node, device in _held(row, without_device):
            lane = lanes.setdefault(
                (node, not device, device), Lane(device, node, row.device_kind or "", row.virtual and bool(device))
            )
            lane.add(bar)
    shown = [lanes[key] for key in sorted(lanes)]
    nodes = {lane.node for lane in shown}
    out = sorted((one for one in outages if one.node in nodes), key=lambda one: one.start)
    return Timeline(tuple(shown), waiting_counts([bar.row for bar in bars]), tuple(out))


def _held(row: HistoryRow, without_device: bool) -> Iterator[tuple[str, str]]:
    """Node and device of each device that the run held; an empty device for each instance that held none."""
    for node, devices in row.places:
        for device in devices or ([""] if without_device else []):
            yield node, device


def phase_seconds(row: HistoryRow) -> dict[str, float | None]:
    """How long a run was in each phase that it reported, in their order."""
    return dict(zip(REPORTED, (row.prepared_s, row.trained_s, row.saved_s), strict=True))


def phase_spans(row: HistoryRow) -> tuple[Span, ...]:
    """The phases of a run from its grant to its end; empty if it was never granted a place."""
    if row.granted_at is None:
        return ()
    spans: list[Span] = []
    at, end = row.granted_at, max(row.ended_at, row.granted_at)
    for phase, seconds in phase_seconds(row).items():
        if seconds is not None and at < end:
            spans.append(Span(phase, at, min(end, at + seconds)))
            at = spans[-1].end
    if not spans:
        return (Span("running", at, end),)
    if at < end:
        spans.append(Span("ending", at, end))
    return tuple(spans)


def waiting_counts(rows: Sequence[HistoryRow]) -> tuple[tuple[float, int], ...]:
    """How many runs wait for a device, each time that this changes. A run that needs none does not count."""
    changes: dict[float, int] = {}
    for row in rows:
        if row.devices and row.granted_at is not None and row.waited_s:
            began = row.granted_at - row.waited_s
            changes[began] = changes.get(began, 0) + 1
            changes[row.granted_at] = changes.get(row.granted_at, 0) - 1
    counts, count = [], 0
    for at in sorted(changes):
        count += changes[at]
        counts.append((at, count))
    return tuple(counts)
