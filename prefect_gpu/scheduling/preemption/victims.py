"""The running jobs that can make room, ranked, so that a decision looks at the last few and not at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple

from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.order.orders import Order


class Alike(NamedTuple):
    """What jobs have in common that are ranked among each other."""

    gpus: int
    queue: str
    priority: int
    unknown: bool


class Victims:
    """Running jobs that may be stopped, each among its like, by the order's anchor: the last in order last.

    Alike are jobs of one size, one queue and one priority, whose lengths are all known, or all unknown: only their
    anchors compare.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self.alike: dict[Alike, list[tuple[float, str, Job]]] = {}
        self._entry: dict[str, tuple[Alike, tuple[float, str, Job]]] = {}

    def add(self, job: Job) -> None:
        """A job runs, or its anchor may have changed. Jobs that cannot be stopped are left out."""
        self.remove(job)
        if not job.request.preemptible or job.behind is not None or not job.request.total_gpus:
            return
        anchor = self._order.anchor(job)
        if anchor is None:
            return
        entry = (anchor, job.id, job)
        kind = Alike(job.request.total_gpus, job.queue, job.request.priority, job.estimate.service_s is None)
        insort(self.alike.setdefault(kind, []), entry)
        self._entry[job.id] = (kind, entry)

    def remove(self, job: Job) -> None:
        """A job runs no more."""
        found = self._entry.pop(job.id, None)
        if found is None:
            return
        kind, entry = found
        ranked = self.alike[kind]
        del ranked[bisect_left(ranked, entry)]
        if not ranked:
            del self.alike[kind]
