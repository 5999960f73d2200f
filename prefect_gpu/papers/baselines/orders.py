"""Orders by what jobs of a trace state, and runs of a pool cannot: their priority, and their owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.order.orders import Key, Order, Usage

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job


class Priority(Order):
    """Higher priority of the request first, then the time the run was due."""

    goes_by = "priority"

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(negative priority, due time, submission time, id)."""
        return (-job.request.priority, job.not_before, job.submitted_at, job.id)


class Drf(Order):
    """Dominant resource fairness (Ghodsi et al.): the owner with the smallest dominant share comes first."""

    steady = False
    follows_use = True
    goes_by = "owner"

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(dominant share of the owner, due time, submission time, id)."""
        return (state.dominant_share(job.request.owner), job.not_before, job.submitted_at, job.id)
