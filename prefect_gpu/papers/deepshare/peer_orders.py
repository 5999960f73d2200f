"""The two orders that DeepShare's authors compare with, as their code has them: odd ones, kept for the comparison.

What they call LAS serves the job first that has been served *most*; what they call SRTF, the job of which the smallest
part is done. Both wait at the head of the line until it fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_gpu.scheduling.order.orders import Key, Order, Usage

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job


class MostServed(Order):
    """The job that has held devices for the longest time first, whatever their number."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(negative attained seconds, due time, submission time, id)."""
        return (-job.attained(now), job.not_before, job.submitted_at, job.id)


class LeastComplete(Order):
    """The job of which the smallest part is done first; one of unknown length counts as not begun."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(part of its service that is done, due time, submission time, id)."""
        service_s = job.estimate.service_s
        done = job.done(now) / service_s if service_s else 0.0
        return (done, job.not_before, job.submitted_at, job.id)
