"""Which waiting job is looked at first?

The priority of its queue comes before everything else; these classes sort the jobs of equal priority.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Protocol

from prefect_gpu.scheduling.model.jobs import Job

FIRST_LIMIT = 3600.0
"""GPU seconds up to which a job is in the first class of :class:`DiscretizedLas`."""

FACTOR = 4.0
"""Each class's limit is so many times that of the class before."""

Key = tuple[object, ...]


class Usage(Protocol):
    """What an order may ask about the jobs that run."""

    @property
    def running(self) -> Mapping[str, Job]:
        """The running jobs by id."""

    device_count: int
    core_count: int


class Order(abc.ABC):
    """Sorts jobs; the smallest key is looked at first.

    Attributes:
        steady: Whether the key of a waiting job stays what it is while the job waits.
        follows_use: Whether keys change as soon as a job starts, so that they must be made anew before the next.
    """

    steady: bool = True
    follows_use: bool = False

    def anchor(self, job: Job) -> float | None:
        """What ranks running jobs of one size whatever the time is: the larger, the later in the order.

        All running jobs of one size come nearer to their end, or attain service, at the same pace, so this number stays
        while they run. None if the order has no such number; its running jobs cannot make room then.
        """
        return None

    @abc.abstractmethod
    def key(self, job: Job, state: Usage, now: float) -> Key:
        """A sortable key, for waiting and for running jobs.

        It must end in the job's id, so that the order is total and the same every time.
        """


class Fifo(Order):
    """The time the run was due: what Prefect itself does."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(due time, submission time, id)."""
        return (job.not_before, job.submitted_at, job.id)


class Sjf(Order):
    """Shortest job first: expected service at submission. Jobs of unknown length come last, in order of arrival."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(expected seconds, due time, submission time, id)."""
        service_s = job.estimate.service_s
        return (math.inf if service_s is None else service_s, job.not_before, job.submitted_at, job.id)


class Srtf(Order):
    """Shortest remaining time first."""

    def anchor(self, job: Job) -> float | None:
        """When the job will have had its service."""
        return expected_end(job)

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(remaining seconds, due time, submission time, id)."""
        remaining_s = job.remaining_s(now)
        return (math.inf if remaining_s is None else remaining_s, job.not_before, job.submitted_at, job.id)


class Las(Order):
    """Least attained service first, where service is time × GPUs (Tiresias' 2-D LAS, not discretised)."""

    def anchor(self, job: Job) -> float | None:
        """The negative of when it would have started, had it attained its service without a break."""
        return job.attained_s - (job.granted_at or 0.0)

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(attained GPU seconds, due time, submission time, id)."""
        return (job.attained(now) * max(1, job.request.total_gpus), job.not_before, job.submitted_at, job.id)


class HigherFirst(Order):
    """Higher priority of the request first; of equal ones, as another order has it.

    Args:
        order: The other one. Its keys must not change with time.
    """

    def __init__(self, order: Order) -> None:
        self._order = order

    def anchor(self, job: Job) -> float | None:
        """See the other order."""
        return self._order.anchor(job)

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(negative priority, and the other order's key)."""
        return (-job.request.priority, *self._order.key(job, state, now))


class DiscretizedLas(Las):
    """2-D LAS in classes: jobs whose attained GPU seconds are between the same two limits are served in FIFO order."""

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(class, due time, submission time, id)."""
        return (self.level(job, now), job.not_before, job.submitted_at, job.id)

    def level(self, job: Job, now: float) -> int:
        """The job's class: 0 is the first."""
        attained = job.attained(now) * max(1, job.request.total_gpus)
        if attained < FIRST_LIMIT:
            return 0
        return 1 + int(math.log(attained / FIRST_LIMIT, FACTOR) + 1e-9)

    def limit(self, level: int) -> float:
        """GPU seconds at which a class begins."""
        return FIRST_LIMIT * FACTOR ** (level - 1) if level else 0.0


class LeastService(DiscretizedLas):
    """Least remaining service first where it is known, least attained service where it is not; both × GPUs.

    Training times are spread so widely that a job which has run for an hour is expected to run for another: what a
    job has attained is the best guess at what remains, as long as nobody knows better. It is rounded down to the limit
    of its class, so that equals do not take turns.
    """

    def anchor(self, job: Job) -> float | None:
        """When the job will have had its service, or, if that is unknown, as under :class:`Las`."""
        return super().anchor(job) if job.estimate.service_s is None else expected_end(job)

    def key(self, job: Job, state: Usage, now: float) -> Key:
        """(GPU seconds that remain, or that it has attained, due time, submission time, id)."""
        remaining_s = job.remaining_s(now)
        if remaining_s is None:
            service = self.limit(self.level(job, now))
        else:
            service = remaining_s * max(1, job.request.total_gpus)
        return (service, job.not_before, job.submitted_at, job.id)


def expected_end(job: Job) -> float:
    """When a running job will have had its service, if it goes on undisturbed; ``inf`` if nothing is estimated."""
    service_s = job.estimate.service_s
    if service_s is None:
        return math.inf
    since = job.granted_at if job.done_at is None else job.done_at
    return (since or 0.0) + max(0.0, service_s - job.done_s)
