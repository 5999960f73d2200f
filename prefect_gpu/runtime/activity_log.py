"""What happened to the runs of a worker, kept for looking at: phases with their times, gates, weights, cores, losses.

The controller tells it; nobody decides anything by it. It holds every launched run and the newest finished ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from prefect_gpu.runtime.launch.gang import parts_of
from prefect_gpu.runtime.launch.launch import WAITING, Adjustment, Follower, Launch
from prefect_gpu.scheduling.model.instructions import Finish, Hold, OpenGate, SetCores, SetShare
from prefect_gpu.training import protocol

LAUNCHING, GATE, ENDING = "launching", "gate", "ending"
"""Beside the phases that a run reports: its process starts, it waits for its devices, its process ends."""

LEFT = "left"  # an outcome: it was stopped to carry on later or elsewhere
NOT_STARTED = "not started"  # an outcome: the launch was taken back before there was a process

MOST_FINISHED = 1000
CURVE_POINTS = 100
MOST_SPANS = 100  # of one launch, and so of its weights and cores


@dataclass
class Entry:
    """One launch of one run. Times are Unix seconds.

    Attributes:
        number: 1 for the first launch that the activity log heard of, and so on.
        run: What the controller knows of it; None once it is over.
        version: Of the activity log, when the entry changed last.
        spans: [phase, start, end], in order; the end of the last is None while it lasts. Of more than
            :data:`MOST_SPANS` the oldest are joined, under the name of the longer one.
        weights: [since, weight] whenever its share of its devices changed.
        cores: [since, how many] whenever that changed; those of all instances.
        behind: Name of the run that it was prepared behind.
        gate_opened: When it was let through its gate.
        finishing: Why it was asked to end early.
        ended: When its process was gone.
        outcome: As in the history, or :data:`LEFT`, or :data:`NOT_STARTED`; None while it is not known.
        kept: What is shown of a run that is over, in the form of :meth:`as_row`.
    """

    number: int
    run: Launch | None
    version: int = 0
    spans: list[list[Any]] = field(default_factory=list)
    weights: list[list[float]] = field(default_factory=list)
    cores: list[list[float]] = field(default_factory=list)
    behind: str | None = None
    gate_opened: float | None = None
    finishing: str | None = None
    ended: float | None = None
    outcome: str | None = None
    message: str = ""
    kept: dict[str, Any] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)

    def enter(self, phase: str, at: float) -> None:
        """A phase begins, and the one before it ends."""
        self.close(at)
        self.spans.append([phase, at, None])
        if len(self.spans) > MOST_SPANS:  # the first one stays: it is the launch itself
            one, other = self.spans[1:3]
            longer = max(one, other, key=lambda span: span[2] - span[1])
            self.spans[1:3] = [[longer[0], one[1], other[2]]]

    def close(self, at: float) -> None:
        """The phase that lasts ends."""
        if self.spans and self.spans[-1][2] is None:
            self.spans[-1][2] = max(at, self.spans[-1][1])

    @property
    def phase(self) -> str | None:
        """What it does; it ends until Prefect knows of its end, which takes minutes if the run was deleted there."""
        if self.outcome is not None or not self.spans:
            return None
        return self.spans[-1][0] if self.ended is None else ENDING

    @property
    def losses(self) -> list[tuple[float, float]]:
        """The (step, loss) curve, at most :data:`CURVE_POINTS` of it; first and last are always there."""
        return thinned(self.run.losses) if self.run is not None else self.curve

    def as_row(self) -> dict[str, Any]:
        """What a list of runs shows of it; see :func:`prefect_gpu.runtime.overview.overview`."""
        if self.run is None:
            return self.kept
        record, progress = self.run.record, self.run.record.progress
        return {
            "n": self.number,
            "id": record.run_id,
            "name": record.name,
            "flow": str(record.known.get("flow_name") or ""),
            "attempt": record.attempt,
            "queue": record.queue,
            "node": record.placement.node,
            "devices": list(record.placement.all_devices),
            "parts": parts_of(record.placement),
            "shared": record.placement.shared,
            "memory_bytes": record.placement.memory_bytes,
            "submitted": record.times.get("submitted"),
            "granted": record.times.get("granted"),
            "phase": self.phase,
            "spans": self.spans,
            "weights": self.weights,
            "cores": self.cores,
            "behind": self.behind,
            "gated": record.behind is not None and self.outcome is None,
            "gate_opened": self.gate_opened,
            "finishing": self.finishing,
            "idle_before_s": self.run.device_idle_s,
            "neighbours": sorted({other.record.name for other in self.run.company}),
            "step": progress.get("step"),
            "steps": progress.get("steps") or record.known.get("features", {}).get("steps"),
            "steps_per_s": progress.get("steps_per_s"),
            "loss": progress.get("loss"),
            "best_loss": self.run.best_loss,
            "warm": record.warm,
            "wasting": self.run.wasting if self.outcome is None else "",
            "ended": self.ended,
            "outcome": self.outcome,
            "message": self.message,
        }


class ActivityLog(Follower):
    """Follows what the controller does.

    Attributes:
        version: Grows with every change.
        most: Finished launches that are kept.
    """

    def __init__(self, most: int = MOST_FINISHED) -> None:
        self.version = 0
        self.most = most
        self._number = 0
        self._active: dict[str, Entry] = {}  # by run
        self._over: OrderedDict[int, Entry] = OrderedDict()  # by number, in the order in which they ended
        self._holds: dict[str, Hold] = {}

    # -- what the controller tells ----------------------------------------------------------------------------------

    def granted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        entry = self._new(launch)
        entry.enter(LAUNCHING, at)
        self._follow_cores(entry, at)

    def adopted(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        entry, times = self._new(launch), launch.record.times
        names = {"granted": LAUNCHING, WAITING: GATE} | {phase: phase for phase in protocol.PHASES}
        names[protocol.FINISHED] = ENDING
        for name in sorted((name for name in names if name in times), key=lambda name: times[name]):
            entry.enter(names[name], times[name])
        if not entry.spans:
            entry.enter(LAUNCHING, at)
        self._follow_cores(entry, entry.spans[0][1])
        if launch.record.weight != 1.0:
            entry.weights.append([at, launch.record.weight])

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> tuple[()]:
        """See :class:`.Follower`."""
        entry = self._active.get(launch.run_id)
        if entry is None:
            return ()
        if kind == protocol.PHASE:
            phase = GATE if launch.waiting else ENDING if launch.phase == protocol.FINISHED else launch.phase
            if not entry.spans or entry.spans[-1][0] != phase:
                entry.enter(phase, at)
        if kind in (protocol.PHASE, protocol.PROGRESS, protocol.OUT_OF_MEMORY):
            self._changed(entry)
        return ()

    def adjusted(self, launch: Launch, change: Adjustment, at: float) -> None:
        """See :class:`.Follower`."""
        entry = self._active.get(launch.run_id)
        if entry is None:
            return
        match change:
            case OpenGate():
                entry.gate_opened = at
            case SetCores():
                self._follow_cores(entry, at)
            case SetShare(_, weight):
                entry.weights = [*entry.weights[1 - MOST_SPANS :], [at, weight]]
            case Finish(_, reason):
                entry.finishing = reason
        self._changed(entry)

    def wasted(self, launch: Launch, stage: str, at: float) -> None:
        """See :class:`.Follower`."""
        if (entry := self._active.get(launch.run_id)) is not None:
            self._changed(entry)

    def held(self, hold: Hold) -> None:
        """The run waits, for a reason."""
        self._holds[hold.job] = hold

    def ended(self, launch: Launch, at: float) -> None:
        """See :class:`.Follower`."""
        entry = self._active.get(launch.run_id)
        if entry is not None:
            entry.close(at)
            entry.ended = at
            self._changed(entry)

    def released(self, launch: Launch, at: float, carries_on: bool) -> None:
        """See :class:`.Follower`. If it was over before, this changes nothing."""
        self.over(launch, at, None, "")

    def over(self, launch: Launch, at: float, outcome: str | None, message: str) -> None:
        """See :class:`.Follower`."""
        entry = self._active.get(launch.run_id)
        if entry is None or entry.run is not launch:
            return
        del self._active[launch.run_id]
        entry.close(at)
        entry.ended = entry.ended or at
        entry.outcome, entry.message = outcome or NOT_STARTED, message
        # Copied, so that nothing holds on to the run, its neighbours, and theirs.
        entry.curve, entry.kept, entry.run = entry.losses, entry.as_row(), None
        if outcome is None:
            self._forget_not_started(launch.run_id)
        self._over[entry.number] = entry
        while len(self._over) > self.most:
            self._over.popitem(last=False)
        self._changed(entry)

    # -- what may be asked ------------------------------------------------------------------------------------------

    def since(self, version: int) -> Iterator[Entry]:
        """The entries that have changed after that version, in the order in which they were launched."""
        changed = [entry for entry in self._over.values() if entry.version > version]
        changed += [entry for entry in self._active.values() if entry.version > version]
        yield from sorted(changed, key=lambda entry: entry.number)

    def entry(self, number: int) -> Entry | None:
        """The launch with that number; None if it is not kept (any more)."""
        active = (entry for entry in self._active.values() if entry.number == number)
        return self._over.get(number) or next(active, None)

    def hold_of(self, run_id: str) -> Hold | None:
        """Why a run waits, as was said last."""
        return self._holds.get(run_id)

    # -- within -----------------------------------------------------------------------------------------------------

    def _new(self, run: Launch) -> Entry:
        self._number += 1
        self._holds.pop(run.run_id, None)
        entry = Entry(self._number, run)
        behind = self._active.get(run.record.behind or "")
        if behind is not None and behind.run is not None:
            entry.behind = behind.run.record.name
        self._active[run.run_id] = entry
        self._changed(entry)
        for other in run.company:  # they have got a neighbour
            if other.run_id in self._active:
                self._changed(self._active[other.run_id])
        return entry

    def forget_holds(self, waiting: set[str]) -> None:
        """Keep only why these runs wait."""
        for run_id in [run_id for run_id in self._holds if run_id not in waiting]:
            del self._holds[run_id]

    def _forget_not_started(self, run_id: str) -> None:
        """A limit of its deployment may put a run off twice a minute for hours: the last time is enough."""
        before = [n for n, one in self._over.items() if one.outcome == NOT_STARTED and one.kept["id"] == run_id]
        for number in before:
            del self._over[number]

    @staticmethod
    def _follow_cores(entry: Entry, at: float) -> None:
        parts = entry.run.record.placement.parts if entry.run is not None else ()
        count = sum(len(part.cpus) for part in parts)
        if not entry.cores or entry.cores[-1][1] != count:
            entry.cores = [*entry.cores[1 - MOST_SPANS :], [at, count]]

    def _changed(self, entry: Entry) -> None:
        self.version += 1
        entry.version = self.version


def thinned(points: list[tuple[float, float]], most: int = CURVE_POINTS) -> list[tuple[float, float]]:
    """At most so many points of a curve, evenly; the first and the last are always there.

    Example:
        >>> thinned([(0, 5.0), (1, 4.0), (2, 3.0), (3, 2.0), (4, 1.0)], most=3)
        [(0, 5.0), (2, 3.0), (4, 1.0)]
    """
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(position * last / (most - 1))] for position in range(most)]
