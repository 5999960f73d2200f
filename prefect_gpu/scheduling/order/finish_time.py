"""Who goes first, so that nobody ends much later than with its own part of the cluster, and the last job ends early?

A guard around "shortest remaining time first". On plain numbers: a job is what it has had, and what is left of it at
its present speed.

Two numbers were chosen, :data:`LATE` and :data:`LONG`. Their form, and 0.8 for both, came from the description of a
prototype that had seen Shockwave's trace of 120 jobs. Looked at here: that trace, and 28 draws with replacement of
jobs and gaps from it (90 to 240 jobs, 32 and 64 GPUs, gaps of 0.3 to 2 times the length). Along 0.8 to 0.9 for either,
one goal is traded for another and none collapses. What was tried and left out: knowing what jobs of a kind turned out
to take (all but no gain), keeping who runs (the same), service in place of time (less fair), the long ones before the
late ones (unfair), slack in seconds in place of a part.

An :class:`~prefect_gpu.scheduling.order.orders.Order` is asked about one job at a time, and :data:`LONG` needs all. A
profile whose jobs can be stopped would call :func:`ranked` once for each decision, with its running and its waiting
jobs, and use the place in the answer as their key. For a live pool, ``part`` is what a run would have had of it alone:
the mean of min(1, GPUs ÷ jobs) over the run's stay. :meth:`Stay.lateness` is a number that a run's owner can be shown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LATE = 0.8
"""Who is expected to take this part of the time that it would take with its part of the cluster must not wait."""
LONG = 0.82
"""Who has this part of the time left in which all that is left could end must not wait. Less than 1, because jobs may
become faster, which shortens that time, and because GPUs idle where jobs do not fit."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A job that has been submitted and has not ended.

    Attributes:
        gpus: GPUs that it runs on.
        age_s: Seconds since it was submitted.
        served_s: Seconds for which it has run.
        left_s: Seconds that it has to run at its present speed, with what it costs to start it if it waits.
        part: The part of each moment for which its share of the cluster would let it run, above 0 and at most 1.
    """

    id: str
    gpus: int
    age_s: float
    served_s: float
    left_s: float
    part: float = 1.0

    def lateness(self) -> float:
        """Time from submission to end, if it runs from now on, over the time with its part of the cluster alone."""
        alone_s = self.served_s + self.left_s
        takes_s = self.age_s + self.left_s
        return takes_s * self.part / alone_s if alone_s > 0 else math.inf if takes_s > 0 else 0.0


def ranked(jobs: Sequence[Stay], gpus: int, *, late: float = LATE, long: float = LONG) -> list[Stay]:
    """The jobs in the order in which they are to have GPUs.

    First whoever is about to be late, the latest first; then whoever must run on for the last one to end early, the
    longest first; then the shortest first. Of equals, the earlier of ``jobs``.

    Args:
        jobs: All that run or wait.
        gpus: GPUs that they have together.
        late: See :data:`LATE`.
        long: See :data:`LONG`.
    """
    all_left_s = sum(job.left_s * job.gpus for job in jobs) / gpus

    def key(job: Stay) -> tuple[int, float]:
        lateness = job.lateness()
        if lateness > late:
            return (0, -lateness)
        return (1, -job.left_s) if job.left_s > long * all_left_s else (2, job.left_s)

    return sorted(jobs, key=key)
