"""Which jobs run when no duration is known: how long jobs of a kind have lasted says how long one still needs.

What is known is how many GPUs a job asks for, how long it has run, and how long jobs before it ran. From the finished
jobs, and from those still running (they last at least as long as they have), the chance of ending soon is estimated
for every age: for each GPU count by itself as far as there are enough jobs of that count, leaning on all jobs
otherwise. The expected time per ending, for the best moment to look again (the inverse of Gittins' index), then stands
for the remaining time, and :mod:`~prefect_gpu.papers.muri.knapsack` chooses the set. Before anything has ended
this is least attained service: the older a job, the later its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from prefect_gpu.papers.muri.knapsack import EMPHASIS, Floats, Ints, offer_order

FIRST_LIMIT_S = 30.0
RATIO = 1.5  # each interval between limits is longer than the one before by this much
LIMITS = 42  # the last lies at 47 years
KINDS = 16  # GPU counts up to 1, 2, 4 ... 16,384

PRIOR_HAZARD = 0.3  # of ending between one limit and the next, before anything has been seen
PRIOR_JOBS = 10.0  # as many jobs' worth as that weighs against all jobs seen
POOL_JOBS = 5.0  # as many jobs' worth as all jobs weigh against those of one GPU count
FINISH_FIRST = 1e-6  # of jobs between the same limits the one served longer goes on, instead of all in turns

_EARLIER = ~np.tri(LIMITS, dtype=bool).T  # limits that lie before an age


class AttainedService:
    """Learns from the jobs of one cluster how long they last, and ranks those that wait and run.

    Example:
        Jobs of one GPU have always been short and those of eight long, so the newcomer of one GPU goes first.

        >>> jobs = AttainedService()
        >>> for _ in range(20):
        ...     jobs.finished(1, 30.0)
        ...     jobs.finished(8, 40_000.0)
        >>> jobs.rank([8, 1], [0.0, 0.0], [8])
        [1, 0]
    """

    def __init__(self) -> None:
        self._edges = FIRST_LIMIT_S * (RATIO ** np.arange(LIMITS + 1) - 1) / (RATIO - 1)
        self._ended = np.zeros((KINDS, LIMITS))  # jobs that ended in each interval between limits, per kind

    def finished(self, gpus: int, service_s: float) -> None:
        """A job has ended by itself.

        Args:
            gpus: GPUs it asked for, at least 1.
            service_s: seconds it ran on them in all.

        Raises:
            ValueError: if either is out of range.
        """
        _check(np.array([gpus]), np.array([service_s]))
        kind, interval = self._places(np.array([gpus], dtype=np.int64), np.array([service_s]))
        self._ended[kind[0], interval[0]] += 1

    def rank(
        self,
        gpus: Sequence[int] | Ints,
        attained_s: Sequence[float] | Floats,
        node_gpus: Sequence[int] | Ints,
        *,
        emphasis: float = EMPHASIS,
    ) -> list[int]:
        """In which order to offer GPUs to jobs, as :func:`prefect_gpu.papers.muri.knapsack.rank` does.

        Args:
            gpus: GPUs each job asks for, running jobs included if they may be preempted; at least 1.
            attained_s: seconds each has run. Give the jobs as they were submitted: of equals the first goes first.
            node_gpus: GPUs to be given away on each node.
            emphasis: how much little expected work counts against filling the GPUs, 0 to 1.

        Raises:
            ValueError: if lengths differ, a job asks for no GPU, or a time is negative or not a number.
        """
        widths, seconds = np.asarray(gpus, dtype=np.int64), np.asarray(attained_s, dtype=np.float64)
        work = widths * self.remaining_s(widths, seconds)
        return offer_order(widths, work, np.asarray(node_gpus, dtype=np.int64), emphasis)

    def remaining_s(self, gpus: Sequence[int] | Ints, attained_s: Sequence[float] | Floats) -> Floats:
        """Expected seconds of service per ending of each job, seen from the last limit that it has passed.

        The jobs given are evidence as well: each has lasted as long as it has been served.

        Raises:
            ValueError: as :meth:`rank`.
        """
        widths, seconds = np.asarray(gpus, dtype=np.int64), np.asarray(attained_s, dtype=np.float64)
        _check(widths, seconds)
        if not len(widths):
            return np.empty(0)
        kinds, intervals = self._places(widths, seconds)
        outlived = np.minimum((seconds - self._edges[intervals]) / np.diff(self._edges)[intervals], 1.0)
        present, rows = np.unique(kinds, return_inverse=True)
        table = self._table(kinds, intervals, outlived, present)
        return np.asarray(table[rows, intervals] * (1 - FINISH_FIRST * outlived), dtype=np.float64)

    def next_limit_s(self, attained_s: float) -> float:
        """At which attained service (s) a job's estimate changes next: a good moment to decide again."""
        place = int(np.searchsorted(self._edges, attained_s, side="right"))
        return float(self._edges[place]) if place <= LIMITS else math.inf

    def _places(self, widths: Ints, seconds: Floats) -> tuple[Ints, Ints]:
        """Each job's kind (by GPUs) and the interval between limits in which it is."""
        kinds = np.minimum(np.frexp((widths - 1).astype(np.float64))[1], KINDS - 1).astype(np.int64)
        return kinds, np.searchsorted(self._edges[:-1], seconds, side="right") - 1

    def _table(self, kinds: Ints, intervals: Ints, outlived: Floats, present: Ints) -> Floats:
        """Expected seconds per ending, for each kind present (row) and age (column)."""
        edges, ended = self._edges, self._ended
        lengths = np.diff(edges)
        place = kinds * LIMITS + intervals
        reached = np.bincount(place, minlength=KINDS * LIMITS).reshape(KINDS, LIMITS)
        inside = np.bincount(place, weights=outlived, minlength=KINDS * LIMITS).reshape(KINDS, LIMITS)
        everyone = reached + ended
        beyond = everyone[:, ::-1].cumsum(axis=1)[:, ::-1] - everyone
        exposed = beyond + ended + inside
        pool = (ended.sum(axis=0) + PRIOR_JOBS * PRIOR_HAZARD) / (exposed.sum(axis=0) + PRIOR_JOBS)
        hazard = (ended[present] + POOL_JOBS * pool) / (exposed[present] + POOL_JOBS)

        # Of those that reach age k, how many end up to limit l, and after how long together: the best l counts.
        ones = np.ones((len(hazard), 1))
        alive = np.concatenate([ones, np.cumprod(1 - hazard, axis=1)], axis=1)
        spent = np.concatenate([0 * ones, np.cumsum(alive[:, :-1] * lengths * (1 - hazard / 2), axis=1)], axis=1)
        endings = alive[:, :-1, None] - alive[:, None, 1:]
        service = spent[:, None, 1:] - spent[:, :-1, None]
        np.copyto(endings, 0.0, where=_EARLIER)
        np.copyto(service, 1.0, where=_EARLIER)
        return np.asarray(1.0 / (endings / service).max(axis=2), dtype=np.float64)


def _check(widths: Ints, seconds: Floats) -> None:
    if len(widths) != len(seconds):
        raise ValueError(f"{len(widths)} GPU counts but {len(seconds)} times of service: give one of each per job")
    if len(widths) and widths.min() < 1:
        raise ValueError(f"gpus is {int(widths.min())} for a job: leave out jobs that need no GPU")
    if not np.all(seconds >= 0) or np.isinf(seconds).any():
        raise ValueError("a time of service is negative, infinite or not a number: give seconds, at least 0")
