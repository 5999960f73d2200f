"""The running jobs that can make room, ranked, so that a decision looks at the last few and not at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.jobs import Job

if TYPE_CHECKING:
    from prefect_gpu.scheduling.policies.order import Order


class Ranking:
    """Running jobs that may be stopped, by size; those of one size by the order's anchor, the last in order last."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.by_size: dict[int, list[tuple[float, str, Job]]] = {}
        self._entry: dict[str, tuple[int, tuple[float, str, Job]]] = {}

    def add(self, job: Job) -> None:
        """A job runs, or its anchor may have changed. Jobs that cannot be stopped are left out."""
        self.remove(job)
        if not job.request.preemptible or job.behind is not None or not job.request.total_gpus:
            return
        anchor = self._order.anchor(job)
        if anchor is None:
            return
        entry = (anchor, job.id, job)
        size = job.request.total_gpus
        insort(self.by_size.setdefault(size, []), entry)
        self._entry[job.id] = (size, entry)

    def remove(self, job: Job) -> None:
        """A job runs no more."""
        found = self._entry.pop(job.id, None)
        if found is None:
            return
        size, entry = found
        ranked = self.by_size[size]
        del ranked[bisect_left(ranked, entry)]
        if not ranked:
            del self.by_size[size]
