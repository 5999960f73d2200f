"""Runs share a device by what they are estimated to use of it (§6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.sharing.rules import DeclaredMemory, suffices_for

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.state.state import State


class EstimatedUse(DeclaredMemory):
    """The estimated mean utilisations sum to one device at most, and so do the peak memories.

    The run caps itself at what it was granted, because estimates err. A run of unknown utilisation is taken to need
    the whole device.
    """

    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device is free and large enough, or has room beside runs that share."""
        if not super().fits(job, device, state):
            return False
        company = state.occupants(device.id)
        return not company or suffices_for((job, *company))
