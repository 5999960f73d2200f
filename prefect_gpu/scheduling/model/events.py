"""What can happen. Events are facts: they are frozen, they carry no behaviour, and they can be written to a file.

A late, repeated or impossible event changes nothing and never raises: the outside world is not always orderly.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.interference.sensitivity import Key, Traffic
from prefect_gpu.scheduling.model.cluster import Node, Placement, Quotas
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request, Status
from prefect_gpu.scheduling.state.asked import AskedType


@dataclass(frozen=True)
class NodesChanged:
    """The nodes, all of them, as they are now. A job on a node that is gone keeps its placement until it ends."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class QuotasChanged:
    """The limits, all of them, as they are now."""

    quotas: Quotas


@dataclass(frozen=True)
class JobSubmitted:
    """A run waits in a queue. Repeated for a waiting job, it replaces what was known of it.

    Attributes:
        promised: With which probability its deadline was promised when it was submitted before: to an earlier worker,
            say. None: it was not asked for yet.
        held_s: Seconds for which it has held devices before, if the scheduler does not know it: its time limit counts
            them.
    """

    job: str
    request: Request
    queue: str
    submitted_at: float
    not_before: float
    name: str = ""
    estimate: Estimate = UNKNOWN
    promised: float | None = None
    held_s: float = 0.0


@dataclass(frozen=True)
class JobEstimated:
    """More is known now of what a job needs."""

    job: str
    estimate: Estimate


@dataclass(frozen=True)
class JobWithdrawn:
    """A waiting job is no longer ours to start: cancelled, deleted, or taken by another worker."""

    job: str
    reason: str


@dataclass(frozen=True)
class LeaveAsked:
    """A running job is to leave its devices, which are taken out of service.

    It saves and waits again if it may be stopped, with whoever is prepared behind it; else it stays until it ends.
    """

    job: str
    reason: str


@dataclass(frozen=True)
class JobAdopted:
    """A job that an earlier worker placed is still running.

    Attributes:
        behind: The job that it was launched behind, if its gate has not been opened since.
        trains_since: Since when it trains, if it does: its end is predicted from that.
        held_s: Seconds for which it has held devices so far: its time limit counts them.
        promised: With which probability its deadline was promised; None: it was not.
        in_time: Whether it has a deadline that was found possible, and so is not stopped for others.
        opened: Whether others were let in with it, as it did not use its devices.
    """

    job: str
    request: Request
    queue: str
    submitted_at: float
    placement: Placement
    status: Status
    name: str = ""
    behind: str | None = None
    trains_since: float | None = None
    held_s: float = 0.0
    promised: float | None = None
    in_time: bool = False
    opened: bool = False


@dataclass(frozen=True)
class LaunchFailed:
    """A launch did not happen; the job waits again, at the earliest from ``not_before`` on."""

    job: str
    reason: str
    not_before: float


@dataclass(frozen=True)
class PlacingFailed:
    """An error came up when a place was looked for: the job is set aside until ``not_before``, and others go on."""

    job: str
    reason: str
    not_before: float


@dataclass(frozen=True)
class PhaseEntered:
    """A run reported that it now prepares, trains or saves."""

    job: str
    status: Status


@dataclass(frozen=True)
class Progressed:
    """How far runs have come.

    Attributes:
        done: For each run, (job, seconds of undisturbed service that its steps so far are worth).
    """

    done: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class LossReported:
    """A run reported an evaluation value, as it is (SpeCon's E)."""

    job: str
    value: float


@dataclass(frozen=True)
class UtilisationMeasured:
    """How busy a run kept its devices since the last measurement, 0 to 1 (CODA tunes cores on it)."""

    job: str
    utilisation: float


@dataclass(frozen=True)
class SpeedMeasured:
    """How fast a run trains, in steps per second: the mean since its last report of it.

    It stands for the use of its devices where that cannot be measured.
    """

    job: str
    steps_per_s: float


@dataclass(frozen=True)
class MemoryExhausted:
    """A running job has run out of the memory that it was granted, and tries again: it needs its devices alone."""

    job: str


@dataclass(frozen=True)
class WasteNoticed:
    """A run holds its devices without using them.

    Attributes:
        reason: What was seen, as a part of a sentence.
        share_bytes: Others may join it from now on, if so much memory of each device is left to it; None: as before.
    """

    job: str
    reason: str
    share_bytes: int | None = None


@dataclass(frozen=True)
class WasteEnded:
    """It uses them again. Nobody joins it any more; whoever is there stays."""

    job: str


@dataclass(frozen=True)
class SlowdownMeasured:
    """A run's speed alone, divided by its speed now (DeepShare's contention sensitivity; 1 is undisturbed).

    Attributes:
        beside: Program of the only other run that trains on its devices; "": not known, or there are several.
        pair: Of a run on several nodes, measured beside one other such run that shares nodes with it, but no devices:
            the run, and the other one, as both were placed then.
    """

    job: str
    slowdown: float
    beside: str = ""
    pair: tuple[Key, Key] | None = None


@dataclass(frozen=True)
class CompanyLearned:
    """What earlier runs have shown of programs beside each other on a device.

    Attributes:
        pairs: The newest measurement of each pair, (program, the one beside it, its speed alone ÷ beside that one).
    """

    pairs: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True)
class ContentionLearned:
    """What earlier runs have shown of programs on several nodes (DeepShare §III).

    Attributes:
        pairs: (program as it is placed, the one that shares nodes with it, its speed alone ÷ beside that one).
        traffic: How each program communicates when it trains; it takes the place of what was told of it before.
    """

    pairs: tuple[tuple[Key, Key, float], ...] = ()
    traffic: tuple[tuple[str, Traffic], ...] = ()


@dataclass(frozen=True)
class RequestsLearned:
    """What earlier runs asked for: it says what may be expected. Told once.

    Attributes:
        types: Each type, and how many of the newest runs were of it.
    """

    types: tuple[tuple[AskedType, int], ...]


@dataclass(frozen=True)
class UsageLearned:
    """What owners have had, and were owed meanwhile, by the pool's history until now; it takes the place of all else.

    Attributes:
        had: By owner, device-seconds, with what is longer ago counted less (:class:`.Shares`).
        owed: Likewise.
    """

    had: tuple[tuple[str, float], ...]
    owed: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class PromisesLearned:
    """How earlier runs with deadlines ended, the oldest first. Told once.

    Attributes:
        runs: Of each that completed, (seconds from when it was due to its deadline, seconds for which it trained,
            whether a promise to it was kept; None: it had none).
    """

    runs: tuple[tuple[float, float, bool | None], ...]


@dataclass(frozen=True)
class PressureMeasured:
    """How much of a node's memory bandwidth is used, 0 to 1 (CODA §V.D).

    Attributes:
        by_job: What runs on the node use of it, (job, fraction), as far as it is known.
    """

    node: str
    fraction: float
    by_job: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class JobStopped:
    """A job that was told to stop, by this scheduler or by one before it, has stopped and waits again."""

    job: str


ENDED_WELL = "its process ended"
SUSPENDED = "suspended by its user"
"""So ends, for the scheduler, a run that is not over: how long it was says nothing of how long such runs are."""

COMPLETED_OUTCOMES = ("completed", ENDED_WELL)
"""Outcomes of a run that did what it was to do: simulated, and live, where nobody but Prefect knows more."""


@dataclass(frozen=True)
class JobEnded:
    """A run's process is gone and its devices are free."""

    job: str
    outcome: str


@dataclass(frozen=True)
class DrainRequested:
    """The worker takes no new runs from now on."""


@dataclass(frozen=True)
class TimePassed:
    """Nothing happened but time: a run may have become due."""


@dataclass(frozen=True)
class Together:
    """Several things happened at the same moment: all are taken in before anything is decided."""

    events: tuple[Event, ...]


Event = (
    NodesChanged
    | QuotasChanged
    | JobSubmitted
    | JobEstimated
    | JobWithdrawn
    | LeaveAsked
    | JobAdopted
    | LaunchFailed
    | PlacingFailed
    | PhaseEntered
    | Progressed
    | LossReported
    | UtilisationMeasured
    | SpeedMeasured
    | MemoryExhausted
    | WasteNoticed
    | WasteEnded
    | SlowdownMeasured
    | CompanyLearned
    | ContentionLearned
    | RequestsLearned
    | PromisesLearned
    | UsageLearned
    | PressureMeasured
    | JobStopped
    | JobEnded
    | DrainRequested
    | TimePassed
    | Together
)
