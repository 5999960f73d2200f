"""The pool's own past, run again: under another profile, or with more or fewer devices.

A history says when runs were submitted and how long they prepared, trained and saved; that is all that a simulation
needs. How well it is simulated shows when the past is simulated as it was, and compared with what was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prefect_gpu.scheduling.model.abilities import NOTHING_SPECIAL
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.knowledge import Knowledge
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World
from prefect_gpu.storage.row import HistoryRow
from prefect_gpu.units import plural

_MEMORY_BYTES = 80 * 2**30  # of a device on which no run has ever declared what it needs


@dataclass(frozen=True)
class Figures:
    """What runs had from a pool. Times are seconds.

    Attributes:
        runs: How many ended.
        mean_jct_s: Mean time from submission to end.
        mean_wait_s: Mean time from submission to the (first) grant of devices.
        makespan_s: From the first grant to the last end.
        gpu_busy_fraction: Part of that time for which devices trained, 0 to 1.
        never_started: Runs that could not start.
    """

    runs: int
    mean_jct_s: float
    mean_wait_s: float
    makespan_s: float
    gpu_busy_fraction: float
    never_started: int = 0


@dataclass(frozen=True)
class PastRun:
    """What the submitter of a run knew (see :class:`~prefect_gpu.estimation.online.durations.Submission`)."""

    model: str
    gpus: int
    batch_size: int | None
    iterations: int | None


@dataclass(frozen=True)
class Past:
    """A stretch of a pool's history.

    Attributes:
        models: The runs that held devices, in order of submission, on a clock that starts with the first submission.
        submissions: What was known of them, by the names of the models.
        nodes: The devices that were ever used.
        recorded: What they had in fact.
        left_out: How many rows are not among them, by the reason.
    """

    models: tuple[JobModel, ...]
    submissions: Mapping[str, PastRun]
    nodes: tuple[Node, ...]
    recorded: Figures
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """How many devices there were."""
        return sum(len(node.devices) for node in self.nodes)


def read_past(rows: Iterable[HistoryRow]) -> Past | None:
    """Make what can be simulated of finished runs; None if none of them held a device.

    A run that was tried several times counts as several, each submitted when the one before it ended.
    """
    left_out: Counter[str] = Counter()
    chosen: list[HistoryRow] = []
    for row in rows:
        if row.granted_at is None:
            left_out["never started"] += 1
        elif not row.devices:
            left_out["held no device"] += 1
        else:
            chosen.append(row)
    if not chosen:
        return None
    submitted = _submissions(chosen)
    chosen.sort(key=lambda row: (submitted[_name(row)], _granted(row), _name(row)))
    began = submitted[_name(chosen[0])]
    models = tuple(_model(row, submitted[_name(row)] - began) for row in chosen)
    nodes = _nodes(chosen)
    devices = sum(len(node.devices) for node in nodes)
    makespan_s = max(row.ended_at for row in chosen) - min(_granted(row) for row in chosen)
    trained_s = _covered(_training(chosen, models))
    recorded = Figures(
        len(chosen),
        sum(row.ended_at - submitted[_name(row)] for row in chosen) / len(chosen),
        sum(_granted(row) - submitted[_name(row)] for row in chosen) / len(chosen),
        makespan_s,
        trained_s / (devices * makespan_s) if makespan_s > 0 else 0.0,
    )
    return Past(models, {_name(row): _known(row) for row in chosen}, nodes, recorded, dict(left_out))


def replay(past: Past, profile: Profile | str, knowledge: Knowledge, nodes: Sequence[Node] | None = None) -> Figures:
    """Simulate the past.

    The simulated pool can do what the live one can: it starts runs, and stops none.

    Args:
        profile: Who decides.
        knowledge: What the scheduler is told of durations.
        nodes: Another cluster than the past one.
    """

    def estimate(model: JobModel) -> Estimate:
        return Estimate(service_s=knowledge.submitted(model.id, past.submissions[model.id], model.service_s))

    def finished(model: JobModel) -> Iterator[tuple[str, Estimate]]:
        for name, service_s in knowledge.finished(model.id, model.service_s):
            yield name, Estimate(service_s=service_s)

    world = World(
        past.nodes if nodes is None else nodes,
        past.models,
        profile,
        abilities=NOTHING_SPECIAL,
        estimate=estimate,
        finished=finished,
        keep_timeline=True,
    )
    results = world.run()
    ended = results.finished
    makespan_s = results.makespan_s
    trained_s = _covered((span.device, span.start_s, span.end_s) for span in results.timeline if span.training)
    return Figures(
        len(ended),
        sum(outcome.jct_s for outcome in ended) / len(ended) if ended else 0.0,
        sum((outcome.first_start_s or 0.0) - outcome.submit_s for outcome in ended) / len(ended) if ended else 0.0,
        makespan_s,
        trained_s / (results.devices * makespan_s) if makespan_s > 0 and results.devices else 0.0,
        len(results.unfinished),
    )


def resized(nodes: Sequence[Node], change: int) -> tuple[Node, ...]:
    """The cluster with so many devices more, on its largest node; or, with a negative number, fewer.

    Devices are taken from the nodes that have the most, the last one first.

    Raises:
        ValueError: No device would be left.
    """
    devices = sum(len(node.devices) for node in nodes)
    if devices + change < 1:
        raise ValueError(
            f"gpus={change:+d} leaves none of {plural(devices, 'device')}: take away {devices - 1} at most."
        )
    now = list(nodes)
    for number in range(abs(change)):
        at = max(range(len(now)), key=lambda n: len(now[n].devices))
        node = now[at]
        if change > 0:
            like = max(node.devices, key=lambda device: device.memory_bytes)
            now[at] = replace(node, devices=(*node.devices, replace(like, id=f"more-{number}", virtual=False)))
        else:
            now[at] = replace(node, devices=node.devices[:-1])
    return tuple(node for node in now if node.devices)


def _submissions(rows: Sequence[HistoryRow]) -> dict[str, float]:
    ended = {(row.run_id, row.attempt): row.ended_at for row in rows}
    found = {}
    for row in rows:
        granted = _granted(row)
        submitted = granted - (row.waited_s or 0.0) if row.submitted_at is None else row.submitted_at
        before = ended.get((row.run_id, row.attempt - 1))
        if before is not None:
            submitted = max(submitted, before)
        found[_name(row)] = min(submitted, granted)
    return found


def _model(row: HistoryRow, submit_s: float) -> JobModel:
    held_s = max(0.0, row.ended_at - _granted(row))
    launching_s = min(row.prepared_s or 0.0, held_s)
    trained_s = held_s - launching_s - (row.saved_s or 0.0) if row.trained_s is None else row.trained_s
    trained_s = min(max(0.0, trained_s), held_s - launching_s)
    memory_bytes = row.requested_gpu_memory_bytes
    return JobModel(
        _name(row),
        submit_s,
        trained_s,
        replace(
            _shape(row),
            gpu_memory_bytes=memory_bytes,
            exclusive=memory_bytes is None,
            kind=row.flow_name,
            owner=row.owner or "",
            priority=row.priority or 0,
        ),
        launching_s=launching_s,
        saving_s=held_s - launching_s - trained_s,  # the end of the process is part of it
        kind=row.flow_name,
    )


def _training(rows: Sequence[HistoryRow], models: Sequence[JobModel]) -> Iterator[tuple[str, float, float]]:
    """Each device on which a run trained, from when to when."""
    for row, model in zip(rows, models, strict=True):
        begin = _granted(row) + model.launching_s
        for node, devices in row.places:
            for device in devices:
                yield _device_id(node, device), begin, begin + model.service_s


def _covered(spans: Iterable[tuple[str, float, float]]) -> float:
    """Device seconds in which anybody trained: those who share a device train there in the same seconds."""
    covered = 0.0
    reached: dict[str, float] = {}
    for device, begin, end in sorted(spans, key=lambda span: span[1]):
        covered += max(0.0, end - max(begin, reached.get(device, begin)))
        reached[device] = max(end, reached.get(device, end))
    return covered


def _device_id(node: str, device: str) -> str:
    """Unlike any other node's: each may have a ``virtual-0``."""
    return device if device.startswith(f"{node}/") else f"{node}/{device}"


def _shape(row: HistoryRow) -> Request:
    """How many devices each instance had, and how many instances there were."""
    if not row.parts:
        return Request(len(row.devices))
    servers = sum(part["role"] == "server" for part in row.parts)
    counts = [len(devices) for _, devices in row.places][: len(row.parts) - servers]
    if len(set(counts)) > 1:  # they were split over the nodes as the scheduler liked
        return Request(sum(counts), servers=servers, spans=True)
    return Request(counts[0], workers=len(counts), servers=servers)


def _known(row: HistoryRow) -> PastRun:
    steps = row.features.get("steps", row.parameters.get("steps"))
    batch_size = row.features.get("batch_size", row.parameters.get("batch_size"))
    return PastRun(row.category or row.flow_name, len(row.devices), _count(batch_size), _count(steps))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 else None


def _nodes(rows: Sequence[HistoryRow]) -> tuple[Node, ...]:
    """The devices that the runs were on. Their memory is the most that was ever granted there at one time."""
    memory: dict[tuple[str, str], int] = {}
    kinds: dict[tuple[str, str], tuple[str, bool]] = {}
    granted: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for row in rows:
        for place in ((node, device) for node, devices in row.places for device in devices):
            kinds[place] = (row.device_kind or "gpu", row.virtual)
            size = row.requested_gpu_memory_bytes or 0
            granted.setdefault(place, []).extend([(_granted(row), size), (row.ended_at, -size)])
    for place, changes in granted.items():
        now = most = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        memory[place] = most
    largest = max((row.requested_gpu_memory_bytes or 0 for row in rows), default=0)
    nodes: dict[str, list[Device]] = {}
    for node, device in sorted(kinds):
        kind, virtual = kinds[node, device]
        size = max(memory[node, device], largest) or _MEMORY_BYTES
        nodes.setdefault(node, []).append(Device(_device_id(node, device), kind, size, virtual))
    return tuple(Node(name or "node", tuple(devices), ()) for name, devices in nodes.items())


def _granted(row: HistoryRow) -> float:
    assert row.granted_at is not None
    return row.granted_at


def _name(row: HistoryRow) -> str:
    return f"{row.run_id}#{row.attempt}"
