"""May a job share a device with those already on it?"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.cluster import Device

if TYPE_CHECKING:
    from prefect_gpu.scheduling.jobs import Job
    from prefect_gpu.scheduling.state import State


class Sharing(abc.ABC):
    """Says which devices can take a job, and how much of each it is granted."""

    @abc.abstractmethod
    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device can take the job now."""

    def granted_bytes(self, job: Job, devices: Sequence[Device]) -> int:
        """Memory granted on each device: what was asked for if that can be shared, else all of it."""
        if not devices:
            return 0
        if job.request.shareable and job.request.gpu_memory_bytes is not None:
            return job.request.gpu_memory_bytes
        return min(device.memory_bytes for device in devices)

    def left_over(self, job: Job, device: Device, state: State) -> int:
        """Bytes that stay free on the device beside the job: the best fit leaves the fewest."""
        return device.memory_bytes - state.granted_bytes(device.id) - (job.request.gpu_memory_bytes or 0)


class NoSharing(Sharing):
    """One run on one device."""

    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device is free and large enough."""
        return device.memory_bytes >= (job.request.gpu_memory_bytes or 0) and not state.occupants(device.id)


class DeclaredMemory(NoSharing):
    """Runs that declare their memory and allow company share a device while the declarations fit together."""

    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device is free and large enough, or has room beside runs that share."""
        if super().fits(job, device, state):
            return True
        company = state.occupants(device.id)
        if not company or not job.request.shareable or not all(other.request.shareable for other in company):
            return False
        asked = job.request.gpu_memory_bytes or 0
        return state.granted_bytes(device.id) + asked <= device.memory_bytes
