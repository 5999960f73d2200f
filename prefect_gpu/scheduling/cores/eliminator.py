"""When CPU jobs take the memory bandwidth that training needs: CODA's eliminator (§V.D), on plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BANDWIDTH_LIMIT = 0.75
"""Part of a node's memory bandwidth from which on contention is suspected."""

UTILISATION_DROP = 0.05
"""By how much a GPU's utilisation must fall to count as a drop; the paper gives no number."""

LEAST_PERCENT = 10
"""Intel's Memory Bandwidth Allocation is set in steps of ten percent, of which the first is the least."""


@dataclass(frozen=True)
class CpuJob:
    """A CPU job on the node.

    Attributes:
        cores: Cores that it has.
        full_cores: Cores that it had before it was throttled.
        bytes_per_s: Memory bandwidth that it uses.
        percent: Bandwidth that it is allowed, of its own, in percent (100 if not throttled).
    """

    id: str
    cores: int
    full_cores: int
    bytes_per_s: float
    percent: int = 100

    def __post_init__(self) -> None:
        if not 1 <= self.cores <= self.full_cores:
            raise ValueError(
                f"job {self.id!r} has {self.cores} of {self.full_cores} cores: give 1 <= cores <= full_cores"
            )
        if not LEAST_PERCENT <= self.percent <= 100:
            raise ValueError(f"percent of job {self.id!r} is {self.percent}: give {LEAST_PERCENT} to 100")
        if not self.bytes_per_s >= 0:
            raise ValueError(f"bytes_per_s of job {self.id!r} is {self.bytes_per_s}: give at least 0")


@dataclass(frozen=True)
class Training:
    """A training job on the node: its mean GPU utilisation now, and before anything disturbed it, both 0 to 1."""

    utilisation: float
    usual_utilisation: float


@dataclass(frozen=True)
class Limit:
    """Let a CPU job use this much: of its bandwidth in percent where the node can limit it, else so many cores."""

    job: str
    percent: int
    cores: int


def contended(
    used_bytes_per_s: float,
    capacity_bytes_per_s: float,
    training: Sequence[Training],
    limit: float = BANDWIDTH_LIMIT,
    drop: float = UTILISATION_DROP,
) -> bool:
    """Whether memory bandwidth is short enough to slow training down: at the limit, and a job's utilisation dropped.

    Args:
        used_bytes_per_s: Memory bandwidth in use on the node.
        capacity_bytes_per_s: What the node has.
        training: The training jobs on the node.
        limit: Part of the capacity from which on contention is suspected.
        drop: By how much a utilisation must fall to count as a drop.

    Raises:
        ValueError: The capacity is not positive.
    """
    if not capacity_bytes_per_s > 0:
        raise ValueError(f"capacity_bytes_per_s is {capacity_bytes_per_s}: give the node's memory bandwidth, above 0")
    if used_bytes_per_s < limit * capacity_bytes_per_s:
        return False
    return any(job.usual_utilisation - job.utilisation >= drop for job in training)


def throttle(
    used_bytes_per_s: float,
    capacity_bytes_per_s: float,
    training: Sequence[Training],
    cpu_jobs: Sequence[CpuJob],
    *,
    can_limit_bandwidth: bool,
    limit: float = BANDWIDTH_LIMIT,
    drop: float = UTILISATION_DROP,
) -> list[Limit]:
    """What to change on a node now. Only CPU jobs are ever throttled.

    Under contention the bandwidth of the hungriest CPU jobs is halved, job by job, until the node should be back under
    the limit; where it cannot be limited, their cores are halved, and their bandwidth with them. Once contention is
    over, throttled jobs get back all that they had, the least hungry first, as far as the node should stay under the
    limit; without training jobs they get it back in any case.

    Args:
        used_bytes_per_s: Memory bandwidth in use on the node.
        capacity_bytes_per_s: What the node has.
        training: The training jobs on the node.
        cpu_jobs: The CPU jobs on the node.
        can_limit_bandwidth: Whether the node has Intel's Memory Bandwidth Allocation.
        limit: Part of the capacity from which on contention is suspected.
        drop: By how much a utilisation must fall to count as a drop.

    Returns:
        New limits of the jobs that are to change, in the order of the decision. Cores that are given back may be in use
        by others by now: give as many as are free.
    """
    ceiling = limit * capacity_bytes_per_s
    expected = used_bytes_per_s
    limits: list[Limit] = []
    if contended(used_bytes_per_s, capacity_bytes_per_s, training, limit, drop):
        for job in sorted(cpu_jobs, key=lambda job: -job.bytes_per_s):
            if expected < ceiling or job.bytes_per_s == 0:
                break
            tighter = _tighter(job, can_limit_bandwidth)
            if tighter is None:
                continue
            limits.append(tighter)
            expected -= job.bytes_per_s * (1 - tighter.percent * tighter.cores / (job.percent * job.cores))
        return limits
    for job, full in sorted(((job, _unthrottled_bytes_per_s(job)) for job in cpu_jobs), key=lambda pair: pair[1]):
        if job.percent == 100 and job.cores == job.full_cores:
            continue
        if training and expected + full - job.bytes_per_s >= ceiling:
            continue
        limits.append(Limit(job.id, 100, job.full_cores))
        expected += full - job.bytes_per_s
    return limits


def _tighter(job: CpuJob, can_limit_bandwidth: bool) -> Limit | None:
    if can_limit_bandwidth:
        percent = max(LEAST_PERCENT, job.percent // 2 // 10 * 10)
        return Limit(job.id, percent, job.cores) if percent < job.percent else None
    cores = max(1, job.cores // 2)
    return Limit(job.id, job.percent, cores) if cores < job.cores else None


def _unthrottled_bytes_per_s(job: CpuJob) -> float:
    return job.bytes_per_s * (100 / job.percent) * (job.full_cores / job.cores)
