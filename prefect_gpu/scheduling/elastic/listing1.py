"""How many GPUs does each elastic job get, and is a resize worth it? F-scheduling (Seo, 2020), on plain numbers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

V_BOUND = 0.5
"""Slowdowns lie in [0, 1], so their variance never exceeds 0.25, and the thesis' bound never binds."""
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

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum:
            raise ValueError(
                f"job {self.id!r} has minimum {self.minimum} and maximum {self.maximum}: "
                "give a minimum of at least 1 and a maximum that is no smaller"
            )
        if not self.throughput or self.throughput[0] != 0:
            raise ValueError(
                f"throughput of job {self.id!r} is {self.throughput!r}: entry n is for n GPUs, so start with a 0"
            )

    def f(self, gpus: int) -> float:
        """Training steps per second on so many GPUs; 0 outside of what the job accepts."""
        accepted = self.minimum <= gpus <= self.maximum and gpus < len(self.throughput)
        return self.throughput[gpus] if accepted else 0.0


class _Ladder:
    """The GPU counts that are worth giving to a job, in order: each is faster than all that are smaller.

    With f = (0, 5, 4, 7) these are 1 and 3: a second GPU would slow the job down.
    """

    __slots__ = ("at", "counts", "rates", "whole")

    def __init__(self, job: ElasticJob, gpus: int) -> None:
        self.counts: list[int] = []
        self.rates: list[float] = []
        self.at = 0
        best = 0.0
        for count in range(job.minimum, min(job.maximum, gpus) + 1):
            rate = job.f(count)
            if rate > best:
                best = rate
                self.counts.append(count)
                self.rates.append(rate)
        self.whole = best  # f(U): the best rate on all of the cluster

    @property
    def slowdown(self) -> float:
        return self.rates[self.at] / self.whole


def slowdown(job: ElasticJob, gpus: int, total_gpus: int) -> float:
    """S_M(R) = f_M(R) / f_M(U) (§3.1): 1 is as good as alone on the cluster.

    f_M(U) is the best rate within U, which need not be the one on all of its GPUs.

    Raises:
        ValueError: The job cannot run on the cluster at all.
    """
    whole = _Ladder(job, total_gpus).whole
    if whole == 0:
        raise ValueError(f"job {job.id!r} cannot run on {total_gpus} GPUs: leave it out")
    return job.f(gpus) / whole


def assign(
    jobs: Sequence[ElasticJob],
    gpus: int,
    v_bound: float = V_BOUND,
    *,
    total_gpus: int | None = None,
    others: Sequence[float] = (),
) -> dict[str, int]:
    """Listing 1: GPUs for each job that can be admitted; the others wait.

    Every job in order gets its minimum, if that many are left. Then, GPU by GPU, the step that raises the throughput
    sum most among those that keep the variance of the slowdowns under ``v_bound``; if none does, the step that leaves
    the variance lowest.

    Unlike the listing, a step never slows a job down or leaves it as fast as before: it goes to the next count that is
    faster, and steps of several GPUs compare by their gain per GPU. A GPU that would make nobody faster stays idle.

    Args:
        jobs: In the order in which they are admitted: running jobs first, lest a waiting one displaces them.
        gpus: GPUs to hand out (those of jobs that may not be resized now are not among them).
        v_bound: Upper bound on the variance.
        total_gpus: U, all GPUs of the cluster; ``gpus`` if not given.
        others: Slowdowns of running jobs that keep what they have; they count in the variance.

    Returns:
        GPUs by job id, of the admitted jobs in their order.

    Raises:
        ValueError: A negative number of GPUs, fewer in total than to hand out, or an id that occurs twice.
    """
    total = gpus if total_gpus is None else total_gpus
    if not 0 <= gpus <= total:
        raise ValueError(f"gpus is {gpus} of {total}: give a number from 0 to all GPUs of the cluster")
    ladders: dict[str, _Ladder] = {}
    for job in jobs:
        if job.id in ladders:
            raise ValueError(f"job {job.id!r} is given twice: give each job once")
        ladders[job.id] = _Ladder(job, total)
    left = gpus
    admitted: dict[str, _Ladder] = {}
    for name, ladder in ladders.items():
        if ladder.counts and ladder.counts[0] <= left:
            admitted[name] = ladder
            left -= ladder.counts[0]
    _hand_out(list(admitted.values()), left, v_bound, others)
    return {name: ladder.counts[ladder.at] for name, ladder in admitted.items()}


def _hand_out(ladders: list[_Ladder], left: int, v_bound: float, others: Sequence[float]) -> None:
    # The variance from two running sums: a step changes one slowdown, so each candidate costs O(1), and in the usual
    # case, where the largest gain is fair, a step costs only the heap's O(log jobs).
    number = len(ladders) + len(others)
    total = sum(ladder.slowdown for ladder in ladders) + sum(others)
    squares = sum(ladder.slowdown**2 for ladder in ladders) + sum(value**2 for value in others)

    def after(ladder: _Ladder) -> tuple[float, float, float]:
        """Sum, sum of squares and variance of the slowdowns once the ladder has gone one step up."""
        old, new = ladder.slowdown, ladder.rates[ladder.at + 1] / ladder.whole
        new_total, new_squares = total + new - old, squares + new**2 - old**2
        return new_total, new_squares, max(0.0, new_squares / number - (new_total / number) ** 2)

    heap: list[tuple[float, int]] = []

    def offer(index: int) -> None:
        ladder = ladders[index]
        if ladder.at + 1 < len(ladder.counts):
            wide = ladder.counts[ladder.at + 1] - ladder.counts[ladder.at]
            gain = (ladder.rates[ladder.at + 1] - ladder.rates[ladder.at]) / wide
            heapq.heappush(heap, (-gain, index))

    for index in range(len(ladders)):
        offer(index)
    while left and heap:
        unfair: list[tuple[float, int]] = []
        chosen: int | None = None
        while heap and chosen is None:
            entry = heapq.heappop(heap)
            ladder = ladders[entry[1]]
            if ladder.counts[ladder.at + 1] - ladder.counts[ladder.at] > left:
                continue  # GPUs only get fewer: this step will never fit
            if after(ladder)[2] < v_bound:
                chosen = entry[1]
            else:
                unfair.append(entry)
        if chosen is None:
            if not unfair:
                return
            entry = min(unfair, key=lambda entry: (after(ladders[entry[1]])[2], entry))
            unfair.remove(entry)
            chosen = entry[1]
        for entry in unfair:
            heapq.heappush(heap, entry)
        ladder = ladders[chosen]
        total, squares, _ = after(ladder)
        left -= ladder.counts[ladder.at + 1] - ladder.counts[ladder.at]
        ladder.at += 1
        offer(chosen)


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
