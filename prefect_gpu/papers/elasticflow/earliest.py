"""The earliest deadline first, each job at its best size, or at the largest that is free: a baseline of its authors."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.papers.elasticflow.world import Decided, Job


class EarliestDeadline:
    """Who finds no size free waits, and later jobs may pass.

    Args:
        gives_up: Jobs are refused, or stopped, when their deadlines have passed; published figures are without that.
    """

    def __init__(self, *, gives_up: bool = False) -> None:
        self._gives_up = gives_up

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide."""
        found: dict[str, int] = {}
        late = [job.name for job in jobs if self._gives_up and job.deadline_s <= now]
        for job in sorted((job for job in jobs if job.name not in late), key=lambda job: job.deadline_s):
            size = max((size for size in job.speed if size <= gpus), default=0)  # more GPUs are faster
            if size:
                found[job.name] = size
                gpus -= size
        return Decided(found, late)
