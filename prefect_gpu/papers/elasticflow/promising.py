"""Our policy in ElasticFlow's world: promises that are kept, and what is left for whom it helps most."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_gpu.papers.elasticflow.world import INTERVAL_S, Decided, Job, change_s
from prefect_gpu.scheduling.elastic.promises import Due, Promises

EXPECTED_S = 2 * INTERVAL_S
"""Between two decisions, where each costs those that run: chosen on clusters 1 and 3."""


class Promising:
    """Decides as :class:`~prefect_gpu.scheduling.elastic.promises.Promises`.

    Args:
        decision_s: Seconds that each decision costs every job that runs.
    """

    def __init__(self, *, decision_s: float = 0.0) -> None:
        self._promises: Promises | None = None
        self._decision_s = decision_s

    def decide(self, now: float, jobs: Sequence[Job], gpus: int) -> Decided:
        """Decide."""
        promises = self._promises = self._promises or Promises(gpus, hold_s=INTERVAL_S)
        pace = 1.0 - self._decision_s / EXPECTED_S
        due = {
            job.name: Due(
                job.name,
                job.work,
                job.deadline_s,
                {size: speed * pace for size, speed in job.speed.items()},
                {size: change_s(size) + self._decision_s for size in job.speed},
                job.gpus,
                job.lost_s + self._decision_s,
            )
            for job in jobs
        }
        promises.update(now, [job for job in due.values() if job.id in promises.plans])
        refused = promises.admit([job for job in due.values() if job.id not in promises.plans])
        return Decided(promises.sizes(), refused, promises.next_change_s())
