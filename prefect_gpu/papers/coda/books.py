"""What each node holds, and how a job would get into it: the books behind CODA's arrays (§V.C)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

WIDE_GPUS = 4
"""From so many GPUs on a job belongs to the 4-GPU sub-array."""


@dataclass(frozen=True)
class NodeSize:
    """What a node has."""

    id: str
    gpus: int
    cores: int


@dataclass(frozen=True)
class Ask:
    """What a job asks: so many instances, each with GPUs (none: a CPU job) and cores of one node.

    Attributes:
        movable: Whether it can be stopped, to make room or to go elsewhere.
    """

    id: str
    gpus: int
    cores: int
    instances: int = 1
    movable: bool = True

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.cores < 0 or self.instances < 1:
            raise ValueError(
                f"job {self.id!r} asks {self.instances} x ({self.gpus} GPUs, {self.cores} cores): "
                "give at least one instance, and no negative number"
            )

    @property
    def wide(self) -> bool:
        """Whether it belongs to the 4-GPU sub-array."""
        return self.gpus * self.instances >= WIDE_GPUS


class Way(enum.IntEnum):
    """How a job would get into a node, the least harmful first."""

    OWN = 0
    OWN_ABORTING = 1
    OTHER = 2
    OTHER_ABORTING = 3
    MOVING = 4


@dataclass
class Book:
    """One node's book. Within each dict the oldest job comes first.

    Attributes:
        reserved: Cores that are reserved for GPU jobs.
        wide: Whether the node is in the 4-GPU sub-array.
        gpu_jobs: What each GPU job holds here: GPUs, cores, and whether it stays here whoever comes, for it belongs to
            the 4-GPU sub-array or cannot be moved.
        cpu_jobs: Cores that each CPU job holds here.
        fixed: Those of them that cannot be stopped.
    """

    size: NodeSize
    reserved: int
    wide: bool
    gpu_jobs: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    cpu_jobs: dict[str, int] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    gpus: int = 0
    gpu_cores: int = 0
    cpu_cores: int = 0

    @property
    def free_gpus(self) -> int:
        """GPUs that nobody holds."""
        return self.size.gpus - self.gpus

    @property
    def free_cores(self) -> int:
        """Cores that nobody holds."""
        return self.size.cores - self.gpu_cores - self.cpu_cores

    @property
    def borrowed_cores(self) -> int:
        """Reserved cores that CPU jobs hold and can give back."""
        own = self.size.cores - self.reserved
        if self.fixed:
            own = max(own, sum(self.fixed.values()))
        return max(0, self.cpu_cores - own)

    def copy(self) -> Book:
        """A book that can be changed without changing this one."""
        return Book(
            self.size,
            self.reserved,
            self.wide,
            dict(self.gpu_jobs),
            dict(self.cpu_jobs),
            dict(self.fixed),
            self.gpus,
            self.gpu_cores,
            self.cpu_cores,
        )

    def put(self, ask: Ask) -> None:
        """Enter one instance of a job."""
        if ask.gpus:
            gpus, cores, _ = self.gpu_jobs.get(ask.id, (0, 0, False))
            self.gpu_jobs[ask.id] = (gpus + ask.gpus, cores + ask.cores, ask.wide or not ask.movable)
            self.gpus += ask.gpus
            self.gpu_cores += ask.cores
        else:
            self.cpu_jobs[ask.id] = self.cpu_jobs.get(ask.id, 0) + ask.cores
            self.cpu_cores += ask.cores
            if not ask.movable:
                self.fixed[ask.id] = self.cpu_jobs[ask.id]

    def drop(self, job: str) -> None:
        """Strike out all instances of a job."""
        gpus, cores, _ = self.gpu_jobs.pop(job, (0, 0, False))
        self.gpus -= gpus
        self.gpu_cores -= cores
        self.cpu_cores -= self.cpu_jobs.pop(job, 0)
        self.fixed.pop(job, None)


def fit(book: Book, ask: Ask) -> tuple[Way, int, int] | None:
    """How an instance would get into a node, and two numbers of which the smaller fit better; None if it cannot."""
    if not ask.gpus:
        if ask.cores > book.free_cores:
            return None
        own = book.cpu_cores + ask.cores <= book.size.cores - book.reserved
        # Nodes without a free GPU first: there no GPU job will ask for the cores.
        return (Way.OWN if own else Way.OTHER, int(book.free_gpus > 0), book.free_cores - ask.cores)
    own = book.wide == ask.wide
    if ask.gpus <= book.free_gpus:
        left = book.free_gpus - ask.gpus
        if ask.cores <= book.free_cores:
            return (Way.OWN if own else Way.OTHER, left, book.free_cores - ask.cores)
        if ask.cores - book.free_cores <= book.borrowed_cores:
            return (Way.OWN_ABORTING if own else Way.OTHER_ABORTING, left, ask.cores - book.free_cores)
    if own and ask.wide:
        small = [held for held in book.gpu_jobs.values() if not held[2]]
        gpus = book.free_gpus + sum(held[0] for held in small)
        cores = book.free_cores + book.borrowed_cores + sum(held[1] for held in small)
        if ask.gpus <= gpus and ask.cores <= cores:
            return (Way.MOVING, ask.gpus - book.free_gpus, gpus)
    return None


def leavers(book: Book, ask: Ask) -> list[str]:
    """The smaller jobs that must leave the node: the largest first, so that few do."""
    gpus, cores = book.free_gpus, book.free_cores + book.borrowed_cores
    small = {job: held for job, held in book.gpu_jobs.items() if not held[2]}
    leaving = []
    for job in sorted(small, key=lambda job: -small[job][0]):
        if gpus >= ask.gpus and cores >= ask.cores:
            break
        gpus += small[job][0]
        cores += small[job][1]
        leaving.append(job)
    return leaving


def aborts(book: Book, ask: Ask) -> list[str]:
    """The CPU jobs that must give cores back to a GPU job: the latest first, for they lose the least work."""
    if not ask.gpus:
        return []
    cores = book.free_cores
    leaving = []
    for job, held in reversed(book.cpu_jobs.items()):
        if cores >= ask.cores:
            break
        if held and job not in book.fixed:
            cores += held
            leaving.append(job)
    return leaving
