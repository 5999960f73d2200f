"""Our policy in ElasticFlow's world: promises that are kept, and what is left for whom it helps most."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.papers.elasticflow.world import INTERVAL_S, Decided, Job, change_s
from prefect_gpu.scheduling.elastic.promises import Due, Promises


class Promising:
    """Decides as :class:`~prefect_gpu.scheduling.elastic.promises.Promises`."""

    def __init__(self) -> None:
        self._promises: Promises | None = None

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide."""
        promises = self._promises = self._promises or Promises(gpus, hold_s=INTERVAL_S)
        due = {
            job.name: Due(
                job.name,
                job.work,
                job.deadline_s,
                job.speed,
                {size: change_s(size) for size in job.speed},
                job.gpus,
                job.lost_s,
            )
            for job in jobs
        }
        promises.update(now, [job for job in due.values() if job.id in promises.plans])
        refused = promises.admit([job for job in due.values() if job.id not in promises.plans])
        return Decided(promises.sizes(), refused, promises.next_change_s())
