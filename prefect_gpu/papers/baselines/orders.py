"""Orders that papers compare with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.order.orders import Key, Order, Usage, expected_end

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job


class Priority(Order):
    """Higher priority of the request first, then the time the run was due."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(negative priority, due time, submission time, id)."""
        return (-job.request.priority, job.not_before, job.submitted_at, job.id)


class Srsf(Order):
    """Shortest remaining service first, where service is time × GPUs (Tiresias §3)."""

    def anchor(self, job: Job) -> float | None:
        """When the job will have had its service."""
        return expected_end(job)

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(remaining GPU seconds, due time, submission time, id)."""
        remaining_s = job.remaining_s(now)
        service = math.inf if remaining_s is None else remaining_s * max(1, job.request.total_gpus)
        return (service, job.not_before, job.submitted_at, job.id)


class Drf(Order):
    """Dominant resource fairness (Ghodsi et al.): the owner with the smallest dominant share comes first."""

    steady = False
    follows_use = True

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(dominant share of the owner, due time, submission time, id)."""
        return (dominant_share(job.request.owner, state), job.not_before, job.submitted_at, job.id)


def dominant_share(owner: str, state: Usage) -> float:
    """The larger of an owner's shares of all devices and of all cores, 0 to 1."""
    own = [job.placement for job in state.running.values() if job.request.owner == owner and job.placement]
    devices = sum(len(placement.all_devices) for placement in own)
    cores = sum(len(part.cpus) for placement in own for part in placement.parts)
    return max(devices / max(1, state.device_count), cores / max(1, state.core_count))
