"""A Slurm cluster, as far as a pool has to do with it: what it is asked, and what it answers.

There are two ways to ask: by Slurm's commands (:mod:`.client`) and by slurmrestd (:mod:`.rest`). Nothing beside them
knows which one a pool has.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from prefect_gpu.runtime.drivers.base import LaunchError

T = TypeVar("T")

PENDING, RUNNING = (
    frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"}),
    frozenset({"RUNNING", "SUSPENDED"}),
)
"""States of a job that waits, and of one that has its nodes. In all others it is over, or about to be."""

OUT_OF_MEMORY = "OUT_OF_MEMORY"
_ENDING = "COMPLETING"
_AT_COMMAS = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_PARTS = re.compile(r"([^\[]+|(?=\[))(?:\[([^\]]*)\])?")
_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Unable to connect",
    "Zero Bytes were transmitted",
    "in standby mode",
    "Resource temporarily unavailable",
    "Protocol authentication error",  # munge restarts
)


class SlurmError(LaunchError):
    """Slurm refused something. The message is its own."""


class SlurmAway(SlurmError):
    """slurmctld does not answer now. What runs goes on."""

    away = True


def error_of(said: str, message: str = "") -> SlurmError:
    """What Slurm has complained of, as the error that it is, with all or a part of that as its message."""
    kind = SlurmAway if any(words in said for words in _AWAY) else SlurmError
    return kind(message or said)


@dataclass(frozen=True)
class SlurmJob:
    """A job, as Slurm's queue shows it.

    Attributes:
        id: Slurm's number.
        name: The name that it was submitted with.
        state: ``PENDING``, ``RUNNING``, ``TIMEOUT``, …
        reason: Why it waits: ``Resources``, ``Priority``, ``QOSMaxGRESPerUser``, …; ``None`` if there is none.
        ends_at: Unix seconds at which its time limit ends it, or at which it ended; None: it has none.
        starts_at: Unix seconds at which it was given its nodes, or may be; None: that is unknown.
        nodes: Names of its nodes, as Slurm writes lists; empty: it has none. See :func:`hostnames`.
        comment: What its script says of its end, where its output is seen by nobody.
    """

    id: str
    name: str
    state: str
    reason: str = "None"
    ends_at: float | None = None
    starts_at: float | None = None
    nodes: str = ""
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in PENDING

    @property
    def runs(self) -> bool:
        """Whether it has its nodes."""
        return self.state in RUNNING


@dataclass(frozen=True)
class Partition:
    """A partition of the cluster.

    Attributes:
        state: ``up`` or another one.
        time: How long a job may last, as Slurm writes it; ``infinite``: as long as it likes.
        default: Whether jobs that name none are known to go there.
    """

    state: str
    time: str = "infinite"
    default: bool = False


def as_allocations(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Each heterogeneous job, which Slurm shows part by part (``7+0``, ``7+1``), as the one allocation that it is.

    Its parts start together. It waits as long as one of them does, and is over as soon as one of them is.

    Example:
        >>> parts = [SlurmJob("7+1", "a", "PENDING", "Resources"), SlurmJob("7+0", "a", "PENDING", "None")]
        >>> [(job.id, job.reason) for job in as_allocations(parts)]
        [('7', 'Resources')]
    """
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        found.setdefault(job.id.partition("+")[0], []).append(job)
    return [_together(number, parts) for number, parts in found.items()]


def _together(number: str, parts: list[SlurmJob]) -> SlurmJob:
    parts.sort(key=lambda job: int(job.id.partition("+")[2] or 0))
    over = next((job for job in parts if has_ended(job.state)), None)
    shown = over or next((job for job in parts if job.waits), parts[0])
    reasons = [job.reason for job in (shown, *parts) if job.reason not in ("None", "")]
    return dataclasses.replace(
        shown,
        id=number,
        reason=reasons[0] if reasons else shown.reason,
        nodes=",".join(job.nodes for job in parts if job.nodes),
    )


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, as the cluster's accounting knows it.

    Attributes:
        state: ``TIMEOUT``, ``NODE_FAIL``, ``CANCELLED by root``, …
        out_of_memory: Whether the job, or a step of it, has taken more main memory than it had asked for.
    """

    state: str
    out_of_memory: bool = False


class Cluster(Protocol):
    """What a pool asks of a cluster.

    Raises:
        SlurmError: By all of them: Slurm refuses it.
        SlurmAway: By all of them: slurmctld, or who speaks for it, does not answer.
    """

    async def cluster_name(self) -> str:
        """What the cluster calls itself."""
        ...

    async def partitions(self) -> dict[str, Partition]:
        """The partitions."""
        ...

    async def refusal(self, options: Sequence[str]) -> str:
        """Why a job would be refused as soon as it was submitted, in Slurm's words; empty: it would not be, or Slurm
        cannot be asked that in this way. Nothing is submitted.

        Args:
            options: As of :meth:`submit`.
        """
        ...

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        """Submit a job. It is tried once: if the answer is lost, the job is found by its name.

        Args:
            script: A file with its batch script.
            options: As ``sbatch`` takes them, each ``--NAME=VALUE`` or ``--NAME``; ``:`` between the parts of a
                heterogeneous job.

        Returns:
            Its number.
        """
        ...

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        """This user's jobs whose name begins so, those included that have ended a short while ago.

        A heterogeneous job is one: see :func:`as_allocations`.
        """
        ...

    async def cancel(self, ids: Iterable[str]) -> None:
        """End jobs. One that is over already is no error."""
        ...

    async def ends(self, ids: Iterable[str]) -> Mapping[str, JobEnd]:
        """How these jobs have ended, those of which the accounting knows; none where there is no accounting.

        It raises nothing: nobody depends on it.
        """
        ...

    async def drained(self) -> Mapping[str, str]:
        """The nodes that their administrator wants empty, each with why."""
        ...


def hostnames(nodes: str) -> list[str]:
    """The nodes of a list as Slurm writes it, in its order.

    Example:
        >>> hostnames("gpu[3-4,07-08],login1"), hostnames("")
        (['gpu3', 'gpu4', 'gpu07', 'gpu08', 'login1'], [])
        >>> hostnames("r[1-2]n[0-1]")
        ['r1n0', 'r1n1', 'r2n0', 'r2n1']
    """
    found: list[str] = []
    for one in _AT_COMMAS.findall(nodes):
        names = [""]
        for before, ranges in _PARTS.findall(one):
            numbers = [number for part in ranges.split(",") for number in _counted(part)] if ranges else [""]
            names = [f"{name}{before}{number}" for name in names for number in numbers]
        found += names
    return found


def _counted(part: str) -> list[str]:
    """The numbers of ``07-09``, each with as many digits; of one number, that one."""
    first, _, last = part.partition("-")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]


def has_ended(state: str) -> bool:
    """Whether a job in this state is over for good."""
    return bool(state) and state not in PENDING | RUNNING | {_ENDING, "RESIZING", "SIGNALING", "STOPPED"}


async def patiently(ask: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Ask what may be asked repeatedly, again and again while slurmctld is away.

    Args:
        patience_s: For so long.
    """
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type(SlurmAway),
        wait=wait_exponential(0.5, max=5),
        stop=stop_after_delay(patience_s),
        reraise=True,
    ):
        with attempt:
            return await ask()
    raise AssertionError("unreachable")
