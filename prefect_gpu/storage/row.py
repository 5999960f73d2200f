"""One finished run: what was known when it was submitted, what it used, how it ended."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Outcome = Literal["completed", "failed", "cancelled", "crashed"]
OUTCOMES: tuple[str, ...] = ("completed", "failed", "cancelled", "crashed")


class Part(TypedDict):
    """Where one instance of a gang was, and whether it was a ``worker`` or a (parameter) ``server``."""

    node: str
    devices: Sequence[str]
    role: str


@dataclass(frozen=True)
class HistoryRow:
    """One attempt of one run, after it ended. None means that something is not known.

    Each field is a column of the history: see :mod:`prefect_gpu.storage.schema`.

    Attributes:
        run_id: The flow run's id.
        attempt: Counts from 1; with `run_id` it names the row.
        flow_name: The flow's name.
        run_name: The flow run's name.
        deployment: The deployment's name; None if the run was submitted by a flow.
        pool: The work pool's name.
        worker: Name of the worker that started it.
        category: What the user calls this kind of training (``"cv"``).
        parameters: The flow run's parameters.
        features: Anything else known at submission: batch_size, steps, gpus, device_kind ...
        requested_gpus: GPUs that were asked for, of each instance.
        requested_gpu_memory_bytes: Memory that was asked for, on each GPU.
        requested_cpus: Cores that were asked for.
        node: Where it ran; of a gang, where its first instance did.
        devices: The ids of the devices of all its instances.
        device_kind: The model of the devices.
        virtual: Whether they were virtual devices, so that the run trained on the CPU.
        submitted_at: When it began to wait.
        granted_at: When it was given devices.
        started_at: When its process was started.
        ended_at: When it ended.
        waited_s: Seconds from submission to the grant.
        prepared_s: Seconds in the phase preparing.
        trained_s: Seconds in the phase training.
        saved_s: Seconds in the phase saving.
        steps_done: Training steps finished.
        final_loss: The last loss that the run reported; None too where it was not finite.
        best_loss: The smallest finite loss that it reported.
        device_util_mean: Mean use of its devices while it trained, 0 to 1.
        device_util_peak: The highest that was measured, 0 to 1.
        device_memory_peak_bytes: Most memory in use on a device.
        rss_peak_bytes: Most main memory in use.
        cpu_mean: Cores in use on average.
        device_util_std: Standard deviation of the devices' use over the training, 0 to 1.
        net_mean_bytes_per_s: Received and sent.
        outcome: How it ended.
        exit_code: Of the process; negative for a signal.
        message: One line or a few, for people.
        warm_start: Whether it was started from a warm interpreter.
        out_of_memory: Whether it ended because memory ran out: of its GPUs; without GPUs, main memory.
        neighbours: Flows that shared its devices.
        estimate: What was estimated at its submission: by target ``[median, low, high]``, with ``from_runs`` and
            ``basis``; empty if nothing was.
        pace: Seconds from the beginning of training until 1, 2, 3, 5, 7, 10, 15, 25, 50 and 75 per cent of the steps
            were done, by per cent; empty: it was not followed from its first step on.
        prepared_behind: Whether it was launched while its predecessor still trained on the same devices.
        gate_wait_s: Seconds for which it was prepared and waited for its devices, at its start gate or for their lock;
            None if it did not wait.
        device_s: Seconds for which it held devices, summed over them; of a device that it shared, its part.
        energy_j: Joules that its devices took meanwhile, likewise; None: nothing counted them.
        energy_from: What counted them: ``gpu``, or ``cpu`` for a run without one.
        cost: Price of that device time; None: nobody has said what these devices cost.
        device_idle_s: Seconds for which no run trained on its devices before it did; None if it was their first run.
        slowdowns: By flow that shared its devices, its speed alone divided by its speed beside it.
        demoted_s: Seconds for which it trained with less than a full share.
        cores: Cores that it had when it ended.
        parts: Of a gang, where each instance was, in the order of their numbers; else empty.
        deadline_at: When it was to have ended; None: it had no deadline.
        promised: With which probability that was promised; None: it was not.
        launch: Names the launch that the row is of: what is recorded again, as the worker was killed meanwhile, is
            known by it.
        owner: Whose it was, where owners are told apart.
        priority: Of the run, among those of its owner and queue.

    Raises:
        ValueError: The outcome is none of the four, or `run_id` is empty.
    """

    run_id: str
    flow_name: str
    outcome: Outcome
    ended_at: float
    attempt: int = 1
    run_name: str | None = None
    deployment: str | None = None
    pool: str | None = None
    worker: str | None = None
    category: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
    requested_gpus: float | None = None
    requested_gpu_memory_bytes: int | None = None
    requested_cpus: float | None = None
    node: str | None = None
    devices: tuple[str, ...] = ()
    device_kind: str | None = None
    virtual: bool = False
    submitted_at: float | None = None
    granted_at: float | None = None
    started_at: float | None = None
    waited_s: float | None = None
    prepared_s: float | None = None
    trained_s: float | None = None
    saved_s: float | None = None
    steps_done: int | None = None
    final_loss: float | None = None
    best_loss: float | None = None
    device_util_mean: float | None = None
    device_util_peak: float | None = None
    device_util_std: float | None = None
    device_memory_peak_bytes: int | None = None
    cpu_mean: float | None = None
    rss_peak_bytes: int | None = None
    net_mean_bytes_per_s: float | None = None
    exit_code: int | None = None
    message: str | None = None
    warm_start: bool = False
    out_of_memory: bool = False
    neighbours: tuple[str, ...] = ()
    estimate: Mapping[str, Any] = field(default_factory=dict)
    pace: Mapping[str, float] = field(default_factory=dict)
    prepared_behind: bool = False
    gate_wait_s: float | None = None
    device_s: float | None = None
    energy_j: float | None = None
    energy_from: str | None = None
    cost: float | None = None
    device_idle_s: float | None = None
    slowdowns: Mapping[str, float] = field(default_factory=dict)
    demoted_s: float | None = None
    cores: int | None = None
    parts: tuple[Part, ...] = ()
    launch: str | None = None
    owner: str | None = None
    priority: int | None = None
    deadline_at: float | None = None
    promised: float | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome={self.outcome!r} must be one of {', '.join(OUTCOMES)}.")
        if not self.run_id:
            raise ValueError("run_id is empty: a row without it could not be told from others.")

    @property
    def places(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Node and devices of each instance, in order; of a run that was no gang there is one."""
        if not self.parts:
            return ((self.node or "", self.devices),)
        return tuple((part["node"], tuple(part["devices"])) for part in self.parts)

    def as_columns(self) -> dict[str, Any]:
        """The row as every database can store it: numbers finite and not too large, text valid, JSON plain."""
        return _storable_fields(self)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> HistoryRow:
        """A row as it was read from a database. Columns that only a newer version knows are ignored."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in _known(cls, columns).items()
        }
        values["parts"] = tuple(
            Part(node=part["node"], devices=tuple(part["devices"]), role=part["role"])
            for part in values.get("parts", ())
        )
        return cls(**values)


@dataclass(frozen=True)
class ContentionRow:
    """How much a run on several nodes was slowed down by another such run on any of them.

    `run_id`, how the run was placed, and the other program and its placement name the row: what is measured of that
    pair later takes its place.

    Attributes:
        run_id: The flow run that was measured.
        program: Its flow's name.
        gpus, nodes: How many GPUs it had in all, and on how many nodes.
        beside: The other run's flow.
        beside_gpus, beside_nodes: Likewise of the other run.
        slowdown: Its steps per second alone divided by those beside the other one (contention sensitivity).
        measured_at: Unix seconds.

    Raises:
        ValueError: The slowdown is not a number above 0.
    """

    run_id: str
    program: str
    gpus: int
    nodes: int
    beside: str
    beside_gpus: int
    beside_nodes: int
    slowdown: float
    measured_at: float

    def __post_init__(self) -> None:
        if not 0 < self.slowdown < math.inf:
            raise ValueError(f"slowdown={self.slowdown!r} must be a number above 0: speed alone ÷ speed beside others.")

    def as_columns(self) -> dict[str, Any]:
        """Likewise."""
        return _storable_fields(self)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> ContentionRow:
        """Likewise."""
        return cls(**_known(cls, columns))


@dataclass(frozen=True)
class StayRow:
    """One launch of a run: how long it held how many devices. A run that is stopped for others has several.

    `run_id` and `launch` name the row. Times are Unix seconds.

    Attributes:
        run_id: The flow run's id.
        launch: Names the launch.
        pool: The work pool's name.
        owner: Whose the run is; empty: nobody said.
        devices: How many it held; of those that it shared, its part.
        submitted_at: When it began to wait.
        granted_at: When the devices became its own.
        ended_at: When it left them.
    """

    run_id: str
    launch: str
    pool: str
    owner: str
    devices: float
    submitted_at: float
    granted_at: float
    ended_at: float

    def as_columns(self) -> dict[str, Any]:
        """Likewise."""
        return _storable_fields(self)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any]) -> StayRow:
        """Likewise."""
        return cls(**_known(cls, columns))


def _storable_fields(row: HistoryRow | ContentionRow | StayRow) -> dict[str, Any]:
    values = {item.name: getattr(row, item.name) for item in dataclasses.fields(row)}
    # A whole number that fits into no column becomes text within JSON, and is left out where a number belongs.
    return {
        name: None if isinstance(value, int) and isinstance(storable(value), str) else storable(value)
        for name, value in values.items()
    }


def _known(row: type, columns: Mapping[str, Any]) -> dict[str, Any]:
    names = {item.name for item in dataclasses.fields(row)}
    return {name: value for name, value in columns.items() if name in names and value is not None}


def storable(value: Any) -> Any:
    """A value that JSON and both databases take.

    Parameters are whatever users pass to their flows. A row must not be lost for one that is odd: NaN and
    infinity become None (PostgreSQL's JSON refuses them), NUL characters and half surrogates are dropped (its text
    refuses those), sets and tuples become lists, and anything else becomes its text.

    Example:
        >>> storable({"lr": float("nan"), 3: ("a", {1})})
        {'lr': None, '3': ['a', [1]]}
    """
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return value.replace("\x00", "").encode("utf-8", "ignore").decode("utf-8")
    if isinstance(value, Mapping):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return [storable(item) for item in items]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return storable(value.item())  # a NumPy number
    return storable(str(value))
