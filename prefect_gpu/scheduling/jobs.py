"""Jobs: what a run asks for, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from prefect_gpu.scheduling.cluster import Placement


@dataclass(frozen=True)
class Request:
    """What one run asks for.

    Attributes:
        gpus: Devices, all on one node; 0 for a run that only needs cores.
        gpu_memory_bytes: Memory on each device; None asks for whole devices.
        cpus: Cores; None leaves the count to the scheduler.
        exclusive: Whether the devices must not be shared with other runs.
        category: Kind of model, for what is learned per kind (CODA §V.B).
    """

    gpus: int = 1
    gpu_memory_bytes: int | None = None
    cpus: int | None = None
    exclusive: bool = True
    category: str | None = None

    @property
    def shareable(self) -> bool:
        """A run shares a device only when it says how much memory it needs and does not mind company."""
        return not self.exclusive and self.gpu_memory_bytes is not None


class Status(str, Enum):
    """How far a job has come. The phases are Liquid's (§5.1, eq. 1): launching, training, saving."""

    WAITING = "waiting"
    LAUNCHING = "launching"
    PREPARING = "preparing"
    TRAINING = "training"
    SAVING = "saving"


ACTIVE = (Status.LAUNCHING, Status.PREPARING, Status.TRAINING, Status.SAVING)


@dataclass(eq=False)
class Job:
    """One run, as the scheduler sees it. Times are seconds on the clock that events carry.

    Attributes:
        not_before: When the run is due; it never starts earlier.
        retry_at: After a launch that failed: when the next one may be tried. The run keeps its place in the queue.
        hold: Code of the reason it was last left waiting for; None before the first look at it.
        story: What happened to it, as (time, sentence).
    """

    id: str
    request: Request
    queue: str
    submitted_at: float
    not_before: float
    name: str = ""
    status: Status = Status.WAITING
    placement: Placement | None = None
    granted_at: float | None = None
    retry_at: float = float("-inf")
    hold: str | None = None
    story: list[tuple[float, str]] = field(default_factory=list)

    @property
    def active(self) -> bool:
        """Whether the job holds a placement."""
        return self.status in ACTIVE

    @property
    def due_at(self) -> float:
        """When the job may start at the earliest."""
        return max(self.not_before, self.retry_at)

    @property
    def label(self) -> str:
        """What people call the job."""
        return self.name or self.id
