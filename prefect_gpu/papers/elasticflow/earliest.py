"""The earliest deadline first, each job at the size at which it is fastest: a baseline of ElasticFlow's authors."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.papers.elasticflow.world import Decided, Job


class EarliestDeadline:
    """Refuses nobody; a job whose best size is not free waits, and later ones may pass."""

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide."""
        found: dict[str, int] = {}
        for job in sorted(jobs, key=lambda job: job.deadline_s):
            best = max(job.speed, key=job.speed.__getitem__)
            if best <= gpus:
                found[job.name] = best
                gpus -= best
        return Decided(found)
