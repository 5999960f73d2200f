"""May a job share a device with those already on it?"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.model.jobs import Estimate, Job, Request
from prefect_gpu.scheduling.state.endings import can_take, lasts_until
from prefect_gpu.scheduling.state.state import State

LEAST_USE = 0.05
"""Use of a device, 0 to 1, that a run is taken to have at least where the pool decides."""


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
        """Whether the device is free, and large enough for what the job declares and is expected to need."""
        return not state.occupants(device.id) and can_take(job, device, state)


class DeclaredMemory(NoSharing):
    """Runs that declare their memory and allow sharing share a device while their memories fit together.

    Each is granted what it declares or, if that is more, what it is estimated to need at most: a run that ran out of
    memory is granted more when it is tried again. Nothing is granted beyond the device.
    """

    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device is free and large enough, or has room beside runs that share."""
        if super().fits(job, device, state):
            return True
        company = state.occupants(device.id)
        if not may_join(job, company) or not job.fits_on(device):
            return False
        if state.granted_bytes(device.id) + planned_bytes(job) > device.memory_bytes:
            return False
        if device.ends_at is not None and not lasts_until(job, device.ends_at, state):
            return False
        if not state.promises.jobs or not state.has_node(device.id):
            return True
        return state.promises.leaves_room_with(job, company, state.group_of(device.id), behind=False)

    def granted_bytes(self, job: Job, devices: Sequence[Device]) -> int:
        """Memory granted on each device: what the run is to be capped at if it shares, else all of it."""
        if not devices or not job.request.shareable:
            return super().granted_bytes(job, devices)
        return min(planned_bytes(job), *(device.memory_bytes for device in devices))

    def left_over(self, job: Job, device: Device, state: State) -> int:
        """See :meth:`Sharing.left_over`."""
        return device.memory_bytes - state.granted_bytes(device.id) - planned_bytes(job)


class KnownCompany(DeclaredMemory):
    """Memory decides for those who said themselves that they share; Liquid's whole rule (§6.2) where the pool says it.

    A run that shares because the pool decided so joins others, or is joined, only while the estimated mean utilisations
    of all of them sum to one device at most; each counts for :data:`LEAST_USE` at least. Programs that were found to be
    better off one after the other never meet.
    """

    def fits(self, job: Job, device: Device, state: State) -> bool:
        """Whether the device is free and large enough, or has room beside runs that share."""
        if not super().fits(job, device, state):
            return False
        company = state.occupants(device.id)
        if not company:
            return True
        if any(state.learned.incompatible.are(job.request.kind, other.request.kind) for other in company):
            return False
        together = (job, *company)
        return not any(one.request.automatic for one in together) or suffices_for(together, LEAST_USE)


def decided(request: Request, estimate: Estimate, may_hold: Callable[[Request], bool] = lambda _: True) -> Request:
    """The request of a run whose user leaves company to the pool, with the pool's decision; any other as it is.

    One whose deadline is to be promised has its devices for itself: nobody slows it down then.

    The run shares where runs of its own program have shown both their memory and their use of a device. It is then
    granted, and capped at, the upper estimate of its peak memory or, if that is more, what it declares. An elastic run
    asks for more devices, not for a part of one: it has its devices for itself. So has one that may need more than
    any device has: what is only estimated keeps no run from starting.

    Args:
        may_hold: Whether the cluster could ever hold a request.
    """
    if request.promise:
        return replace(request, exclusive=True, automatic=False)
    if not request.automatic:
        return request
    elastic = request.max_gpus is not None and request.max_gpus > request.gpus
    if elastic or request.grows or estimate.memory_bytes is None or estimate.utilisation is None:
        return replace(request, exclusive=True)
    shares = replace(
        request, exclusive=False, gpu_memory_bytes=max(request.gpu_memory_bytes or 0, estimate.memory_bytes)
    )
    return shares if may_hold(shares) else replace(request, exclusive=True)


def planned_bytes(job: Job) -> int:
    """Memory that a run which shares is planned with: what it declares or, if that is more, its estimate."""
    return max(job.request.gpu_memory_bytes or 0, job.estimate.memory_bytes or 0)


def may_join(job: Job, company: Sequence[Job]) -> bool:
    """Whether the job may share a device with those on it, if there is room: all want to, and nobody waits for it."""
    if not company or not job.request.shareable:
        return False
    return all(other.request.shareable and other.behind is None for other in company)


def suffices_for(jobs: Iterable[Job], least: float = 0.0) -> bool:
    """Whether the estimated mean utilisations sum to one device at most; an unknown one counts as a whole device.

    Args:
        least: What each counts for at least, 0 to 1.
    """
    used = (job.estimate.utilisation for job in jobs)
    return sum(1.0 if one is None else max(one, least) for one in used) <= 1.0 + 1e-9
