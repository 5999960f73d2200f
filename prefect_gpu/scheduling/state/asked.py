"""What kinds of jobs a pool has seen, and how often each: what it may expect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prefect_gpu.scheduling.model.jobs import Job

ENOUGH = 50
"""Jobs before which nothing is expected."""
MOST_COUNTED = 1600
"""From which on all counts are halved: what came long ago counts less."""
GIB = 2**30
_RENEWED_AFTER = 800
_MOST_TYPES = 64


class AskedType(NamedTuple):
    """What jobs of a type ask for.

    Attributes:
        devices: On one node.
        gib: Memory that each of its devices must have, rounded up; 0: any will do.
        part: Whether they share their devices.
    """

    devices: int
    gib: int
    part: bool


Known = tuple[tuple[AskedType, int], ...]


def type_of(job: Job) -> AskedType | None:
    """The type of a job; None for gangs, and for those that need no device."""
    request = job.request
    if request.is_gang or request.gpus == 0:
        return None
    return AskedType(request.gpus, -(-job.least_bytes // GIB), request.shareable)


class Asked:
    """Counts jobs by type.

    Attributes:
        known: Types and how often each was asked for, as of the last time that enough had come since the one before;
            empty while too few have come.
    """

    def __init__(self) -> None:
        self._counts: dict[AskedType, int] = {}
        self._seen = 0
        self._renew_at = ENOUGH
        self.known: Known = ()

    def submitted(self, job: Job) -> None:
        """A job was seen for the first time."""
        asked = type_of(job)
        if asked is not None:
            self._count(asked, 1)

    def remembered(self, types: Iterable[tuple[AskedType, int]]) -> None:
        """So many of each type came before this scheduler did."""
        for asked, count in types:
            if count > 0 and asked.devices > 0 and asked.gib >= 0:
                self._count(asked, count)

    def _count(self, asked: AskedType, count: int) -> None:
        counts = self._counts
        if asked not in counts and len(counts) >= _MOST_TYPES:
            del counts[min(counts, key=lambda one: (counts[one], one))]
        counts[asked] = counts.get(asked, 0) + count
        self._seen += count
        if self._seen >= self._renew_at:
            self._renew_at = min(2 * self._seen, self._seen + _RENEWED_AFTER)
            self.known = tuple(sorted(counts.items()))
            if sum(counts.values()) >= MOST_COUNTED:
                self._counts = {one: number // 2 for one, number in counts.items() if number > 1}
