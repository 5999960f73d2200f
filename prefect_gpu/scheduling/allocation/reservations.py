"""Devices that are kept for jobs which have waited long enough, and until when others may use them (EASY)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable
from itertools import chain
from typing import NamedTuple

from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.state.state import State


class Reservation(NamedTuple):
    """Devices that are kept for a job.

    Attributes:
        job: It waits for them.
        devices: Whichever of them are free first, it gets.
        start: It is expected to start then; ``inf`` if nobody knows.
        open_until: Others hold it up until then. Whoever can be stopped for it by then may use the devices; ``-inf``:
            nobody is stopped for it.
    """

    job: Job
    devices: frozenset[str]
    start: float
    open_until: float = -math.inf

    def kept_from(self, ends: float, left_alone_until: float) -> bool:
        """Whether somebody may not use the devices.

        Args:
            ends: When it would have ended there; ``inf`` if nobody knows.
            left_alone_until: From when on it would give way; ``inf``: it would not.
        """
        return (self.start == math.inf or ends > self.start) and left_alone_until > self.open_until


class Reservations:
    """What is kept for whom, in one look at the jobs."""

    def __init__(self, already: Iterable[Reservation] = ()) -> None:
        self._kept: list[Reservation] = []
        self.any_known = False
        for one in already:
            self.keep(one)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, one: Reservation) -> None:
        """Keep devices for one more job."""
        if one.devices:
            self._kept.append(one)
            self.any_known |= one.start != math.inf

    def devices(self) -> frozenset[str]:
        """All devices that are kept for anybody."""
        return frozenset().union(*(one.devices for one in self._kept))

    def keeper(self) -> Job:
        """The first job that something is kept for."""
        return self._kept[0].job

    def kept_from(self, job: Job, now: float, left_alone_until: float = math.inf) -> Container[str]:
        """The devices that this job may not use: it would still be there when they are needed.

        Args:
            left_alone_until: See :meth:`Reservation.kept_from`.
        """
        remaining_s = job.remaining_s(now)
        ends = math.inf if remaining_s is None else now + job.estimate.launching_s + remaining_s + job.estimate.saving_s
        kept = [one.devices for one in self._kept if one.kept_from(ends, left_alone_until)]
        if len(kept) == 1:
            return kept[0]
        return frozenset().union(*kept)


def gone_at(run: Job, now: float) -> float:
    """When a run is gone by its estimate; ``inf`` if nobody knows."""
    remaining_s = run.remaining_s(now)
    return math.inf if remaining_s is None else now + remaining_s + run.estimate.saving_s


def expected_start(
    job: Job,
    state: State,
    usable: Collection[str],
    kept: Container[str],
    now: float,
    gone_at: Callable[[Job, float], float] = gone_at,
) -> tuple[frozenset[str], float]:
    """Which devices to keep for a job, and when it is expected to start on them.

    The node where enough devices are expected to be free first, if the ends there are expected. Otherwise, and for a
    job on several nodes, all devices that it could use: whichever are free first, it gets them.

    Args:
        usable: Devices that the job could use if they were free.
        kept: Devices that are kept for jobs before it; nobody knows when it could have those.
        gone_at: When a run is gone, as of now.
    """
    request = job.request
    whole = frozenset(usable)
    if request.spans or request.workers > 1 or request.gpus == 0:
        return whole, math.inf
    best: tuple[float, int] | None = None
    for books in state.numbered:
        on_node = [device.id for device in books.node.devices if device.id in whole]
        if len(on_node) < request.gpus:
            continue
        moments = sorted(_free_at(device, state, kept, lambda run: gone_at(run, now), idle=now) for device in on_node)
        start = moments[request.gpus - 1]
        if best is None or start < best[0]:
            best = (start, books.number)
    if best is None or best[0] == math.inf:
        return whole, math.inf
    node = state.numbered[best[1]].node
    return frozenset(device.id for device in node.devices if device.id in whole), best[0]


def held_until(
    job: Job, state: State, usable: Collection[str], kept: Container[str], end_of: Callable[[Job], float]
) -> float:
    """Before when a job cannot start, even if whoever gives way does: others hold too much of what it could use.

    Args:
        usable, kept: As for :func:`expected_start`.
        end_of: When a run is gone, or gives way.
    """
    request, whole = job.request, frozenset(usable)
    wanted, on_nodes = request.gpus, list[list[float]]()
    for books in state.numbered:
        devices = [device.id for device in books.node.devices if device.id in whole]
        if devices:
            on_nodes.append([_free_at(device, state, kept, end_of, idle=-math.inf) for device in devices])
    if request.spans or request.workers > 1:  # how they must lie together is left out: it could start no sooner
        wanted, on_nodes = request.total_gpus, [list(chain.from_iterable(on_nodes))]
    return min((sorted(ends)[wanted - 1] for ends in on_nodes if len(ends) >= wanted > 0), default=math.inf)


def _free_at(device: str, state: State, kept: Container[str], end_of: Callable[[Job], float], *, idle: float) -> float:
    """When a device has nobody on it any more; ``idle`` if nobody is, and never if it is kept for others."""
    return math.inf if device in kept else max(map(end_of, state.occupants(device)), default=idle)
