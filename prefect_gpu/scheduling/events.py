"""What can happen. Events are facts: they are frozen, they carry no behaviour, and they can be written to a file.

A late, repeated or impossible event changes nothing and never raises: the outside world is not always orderly.
"""

from __future__ import annotations

from dataclasses import dataclass

from prefect_gpu.scheduling.cluster import Node, Placement, Quotas
from prefect_gpu.scheduling.jobs import Request, Status


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
    """A run waits in a queue. Repeated for a waiting job, it replaces what was known of it."""

    job: str
    request: Request
    queue: str
    submitted_at: float
    not_before: float
    name: str = ""


@dataclass(frozen=True)
class JobWithdrawn:
    """A waiting job is no longer ours to start: cancelled, deleted, or taken by another worker."""

    job: str
    reason: str


@dataclass(frozen=True)
class JobAdopted:
    """A job that an earlier worker placed is still running."""

    job: str
    request: Request
    queue: str
    submitted_at: float
    placement: Placement
    status: Status
    name: str = ""


@dataclass(frozen=True)
class LaunchFailed:
    """A launch did not happen; the job waits again, at the earliest from ``not_before`` on."""

    job: str
    reason: str
    not_before: float


@dataclass(frozen=True)
class PhaseEntered:
    """A run reported that it now prepares, trains or saves."""

    job: str
    status: Status


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


Event = (
    NodesChanged
    | QuotasChanged
    | JobSubmitted
    | JobWithdrawn
    | JobAdopted
    | LaunchFailed
    | PhaseEntered
    | JobEnded
    | DrainRequested
    | TimePassed
)
