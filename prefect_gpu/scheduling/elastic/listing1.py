"""How many GPUs does each elastic job get, and is a resize worth it? F-scheduling (Seo, 2020), on plain numbers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LEAST_GAIN_STEPS_PER_S = 1.0
"""By how much the throughput sum must rise, if nobody new starts."""
PROTECTED_LAUNCHES = 3.0
"""A job is left alone for so many times what its last launch took."""


@dataclass(frozen=True)
class ElasticJob:
    """A job that can run on several GPU counts.

    Attributes:
        minimum: Fewest GPUs that it accepts, at least 1.
        maximum: Most GPUs that it accepts.
        throughput: f_M, training steps per second by GPU count, so its first entry, for no GPU, is 0; 0 where the job
            cannot run.
    """

    id: str
    minimum: int
    maximum: int
    throughput: Sequence[float]

    def f(self, gpus: int) -> float:
        """Training steps per second on so many GPUs; 0 outside of what the job accepts."""
        accepted = self.minimum <= gpus <= self.maximum and gpus < len(self.throughput)
        return self.throughput[gpus] if accepted else 0.0


def assign(jobs: Sequence[ElasticJob], gpus: int) -> dict[str, int]:
    """Listing 1: GPUs for each job that can be admitted; the others wait.

    Every job in order gets its minimum, if that many are left. Then, GPU by GPU, the step that raises the throughput
    sum most. The listing also bounds the variance of slowdowns by 0.5; they lie in [0, 1], so their variance is 0.25 at
    most, and the bound keeps nothing from happening.

    Unlike the listing, a step never slows a job down or leaves it as fast as before: it goes to the next count that is
    faster, and steps of several GPUs compare by their gain per GPU. A GPU that would make nobody faster stays idle.

    Args:
        jobs: In the order in which they are admitted: running jobs first, lest a waiting one displaces them.
        gpus: GPUs to hand out (those of jobs that may not be resized now are not among them).

    Returns:
        GPUs by job id, of the admitted jobs in their order.

    Raises:
        ValueError: A negative number of GPUs, or an id that occurs twice.
    """
    if gpus < 0:
        raise ValueError(f"gpus is {gpus}: give 0 or more")
    if len({job.id for job in jobs}) < len(jobs):
        raise ValueError(f"jobs are {[job.id for job in jobs]}: give each job once")
    left = gpus
    admitted: dict[str, list[tuple[int, float]]] = {}  # the steps that a job has not taken yet, below the one it is on
    for job in jobs:
        steps = _steps(job, gpus)
        if steps and steps[-1][0] <= left:
            admitted[job.id] = steps
            left -= steps[-1][0]
    heap: list[tuple[float, int, str]] = []

    def offer(number: int, name: str) -> None:
        *_, (more, faster), (count, rate) = [(0, 0.0), *admitted[name]]
        if more:
            heapq.heappush(heap, ((rate - faster) / (more - count), number, name))

    for number, name in enumerate(admitted):
        offer(number, name)
    while left and heap:
        _, number, name = heapq.heappop(heap)
        wide = admitted[name][-2][0] - admitted[name][-1][0]
        if wide <= left:  # else it will never fit: GPUs only get fewer
            admitted[name].pop()
            left -= wide
            offer(number, name)
    return {name: steps[-1][0] for name, steps in admitted.items()}


def _steps(job: ElasticJob, gpus: int) -> list[tuple[int, float]]:
    """The counts that are worth giving to a job, with their rates, the largest first: each is faster than all smaller.

    With f = (0, 5, 4, 7) these are 3 and 1: a second GPU would slow the job down.
    """
    found = [(0, 0.0)]
    for count in range(job.minimum, min(job.maximum, gpus) + 1):
        if job.f(count) > found[-1][1]:
            found.append((count, job.f(count)))
    return found[:0:-1]


def worth_applying(jobs: Sequence[ElasticJob], before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether a new assignment is worth the restarts (§4.4): a waiting job starts, or the sum of f rises enough.

    Args:
        jobs: The jobs that the assignments name.
        before: GPUs by job id now, of the running jobs.
        after: GPUs by job id in the new assignment.
    """
    if any(count > 0 and before.get(name, 0) == 0 for name, count in after.items()):
        return True
    by_id = {job.id: job for job in jobs}
    return throughput(by_id, after) - throughput(by_id, before) >= LEAST_GAIN_STEPS_PER_S


def throughput(jobs: Mapping[str, ElasticJob], counts: Mapping[str, int]) -> float:
    """The sum of f."""
    return sum(jobs[name].f(count) for name, count in counts.items())
