"""Which waiting job is looked at first?"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Job
    from prefect_gpu.scheduling.state import State


class Order(abc.ABC):
    """Sorts the waiting jobs; the smallest key is looked at first."""

    @abc.abstractmethod
    def key(self, job: Job, state: State, now: float) -> tuple[object, ...]:
        """A sortable key. It must end in the job's id, so that the order is total and the same every time."""


class Fifo(Order):
    """Queue priority first, then the time the run was due: what Prefect itself does."""

    def key(self, job: Job, state: State, now: float) -> tuple[object, ...]:
        """(priority of the queue, due time, submission time, id)."""
        return (state.queue(job.queue).priority, job.not_before, job.submitted_at, job.id)
