"""Devices that are kept for jobs which have waited long enough, and until when others may use them (EASY)."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable
from typing import NamedTuple

from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.state import State


class Reservation(NamedTuple):
    """Devices that are kept for a job which is expected to start at that time; ``inf`` if nobody knows."""

    job: Job
    devices: frozenset[str]
    start: float


class Reservations:
    """What is kept for whom, in one look at the jobs."""

    def __init__(self, already: Iterable[Reservation] = ()) -> None:
        self._kept: list[Reservation] = []
        self.any_known = False
        for one in already:
            self.keep(*one)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, job: Job, devices: frozenset[str], start: float) -> None:
        """Keep the devices for the job, which is expected to start at that time; ``inf`` if nobody knows."""
        if devices:
            self._kept.append(Reservation(job, devices, start))
            self.any_known |= start != math.inf

    def devices(self) -> frozenset[str]:
        """All devices that are kept for anybody."""
        return frozenset().union(*(devices for _, devices, _ in self._kept))

    def keeper(self) -> Job:
        """The first job that something is kept for."""
        return self._kept[0][0]

    def kept_from(self, job: Job, now: float) -> Container[str]:
        """The devices that this job may not use: it would still be there when they are needed."""
        remaining_s = job.remaining_s(now)
        ends = math.inf if remaining_s is None else now + job.estimate.launching_s + remaining_s + job.estimate.saving_s
        kept = [devices for _, devices, start in self._kept if start == math.inf or ends > start]
        if len(kept) == 1:
            return kept[0]
        return frozenset().union(*kept)


def expected_start(
    job: Job, state: State, usable: Collection[str], kept: Container[str], now: float
) -> tuple[frozenset[str], float]:
    """Which devices to keep for a job, and when it is expected to start on them.

    The node where enough devices are expected to be free first, if the ends there are expected. Otherwise, and for a
    job on several nodes, all devices that it could use: whichever are free first, it gets them.

    Args:
        usable: Devices that the job could use if they were free.
        kept: Devices that are kept for jobs before it; nobody knows when it could have those.
    """
    request = job.request
    whole = frozenset(usable)
    if request.spans or request.workers > 1 or request.gpus == 0:
        return whole, math.inf
    best: tuple[float, int] | None = None
    ends: dict[str, float] = {}
    for books in state.numbered:
        on_node = [device.id for device in books.node.devices if device.id in whole]
        if len(on_node) < request.gpus:
            continue
        moments = sorted(math.inf if device in kept else _expected_end(device, state, now, ends) for device in on_node)
        start = moments[request.gpus - 1]
        if best is None or start < best[0]:
            best = (start, books.number)
    if best is None or best[0] == math.inf:
        return whole, math.inf
    node = state.numbered[best[1]].node
    return frozenset(device.id for device in node.devices if device.id in whole), best[0]


def _expected_end(device: str, state: State, now: float, known: dict[str, float]) -> float:
    end = now
    for job in state.occupants(device):
        if job.id not in known:
            remaining_s = job.remaining_s(now)
            known[job.id] = math.inf if remaining_s is None else now + remaining_s + job.estimate.saving_s
        end = max(end, known[job.id])
    return end
