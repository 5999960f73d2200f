"""The earliest deadline first, each job at its best size, or at the largest that is free: a baseline of its authors."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.papers.elasticflow.world import Decided, Job


class EarliestDeadline:
    """Refuses nobody; who finds no size free waits, and later jobs may pass."""

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide."""
        found: dict[str, int] = {}
        for job in sorted(jobs, key=lambda job: job.deadline_s):
            size = max((size for size in job.speed if size <= gpus), default=0)  # more GPUs are faster
            if size:
                found[job.name] = size
                gpus -= size
        return Decided(found)
