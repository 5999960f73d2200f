"""Nodes that are alike, and what a job needs of such nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from typing import Any, NamedTuple

from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.preemption.best_set import level_of
from prefect_gpu.scheduling.state.state import State

WINDOW = 64
"""Nodes among which a set is chosen in one decision, of those that have most to give."""


class Shape(NamedTuple):
    """What a job needs of equal nodes: so many with so many devices each, and one with the rest.

    Attributes:
        level: The exponent of the power of two that it counts as when a set is chosen.
    """

    level: int
    nodes: int
    devices: int
    rest: int = 0

    @classmethod
    def on_one_node(cls, devices: int, size: int) -> Shape:
        """Of a job on one node of so many devices."""
        return cls(min(level_of(devices), size.bit_length() - 1), 1, devices)


def shape_of(request: Request, size: int, nodes: int) -> Shape | None:
    """What a request needs on so many nodes of so many devices; None: they could not hold it."""
    total = request.total_gpus
    if total <= size:
        return Shape.on_one_node(total, size)
    if request.is_gang and request.gpus <= size:
        each = size // request.gpus
        whole, rest = divmod(request.workers, each)
        devices, rest = each * request.gpus, rest * request.gpus
    elif request.spans:
        devices = size
        whole, rest = divmod(total, size)
    else:
        return None
    count = whole + (rest > 0)
    return Shape(size.bit_length() - 1 + level_of(count), whole, devices, rest) if count <= nodes else None


class Pool:
    """Nodes of one domain and one size, whose smallest devices have the same memory, and which leave service together.

    Of a node whose devices are of several kinds, those of each kind count as a node of their own.

    Args:
        ends_at: When that is; infinite: nobody knows of an end.
        like: One of the devices, if all are of one kind.
    """

    def __init__(self, size: int, least_bytes: int, ends_at: float = math.inf, like: Device | None = None) -> None:
        self.size = size
        self.like = like
        self.kind = like.kind if like is not None else ""
        self._own: dict[int, frozenset[str]] = {}  # by node: the devices that belong to it, if not all do
        self.least_bytes = least_bytes
        self.ends_at = ends_at
        self.numbers: list[int] = []
        self.at: dict[int, int] = {}
        self._all: dict[int, None] = {}
        self.units: dict[str, Any] = {}  # by job: what its caller remembers of those that run here

    def add(self, number: int, own: frozenset[str] = frozenset()) -> None:
        """The node of that number belongs to it, or, if some are given, those of its devices."""
        if own:
            self._own[len(self.numbers)] = own
        self.at[number] = len(self.numbers)
        self._all[len(self.numbers)] = None
        self.numbers.append(number)

    def window(self, state: State, nodes: int, worth: Callable[[Job], float]) -> dict[int, None]:
        """The nodes that are looked at now: all of them or, of many, those with most free devices and the worst jobs.

        Args:
            nodes: How many some waiting job needs.
            worth: What it is worth to let a running job go on, for each of its devices.
        """
        most = max(WINDOW, 2 * nodes)
        if len(self.numbers) <= most:
            return self._all
        found: dict[int, None] = {}
        for _, _, numbers in sorted(state.groups_with_free(1), key=lambda group: -group[1]):
            for number in numbers:
                if number in self.at:
                    found[self.at[number]] = None
                    if len(found) >= most // 2:
                        break
        assert state.ranking is not None
        last = [job for ranked in state.ranking.alike.values() for _, _, job in ranked[-most // 4 :]]
        for job in sorted(last, key=worth):
            for part in job.placement.parts if job.placement is not None else ():
                if part.devices and state.has_node(part.devices[0]):
                    number = state.number_of(part.devices[0])
                    if number in self.at:
                        found[self.at[number]] = None
            if len(found) >= most:
                break
        return found

    def accepts(self, request: Request) -> bool:
        """Whether its devices are of a kind that is asked for, so that they need only be counted."""
        wants = request.wants
        return wants is None or (self.like is not None and not request.needs_links and wants.accepts(self.like))

    def node_of(self, device: str, state: State) -> int | None:
        """Its node that has a device; None: the device does not belong to it."""
        node = self.at.get(state.number_of(device)) if state.has_node(device) else None
        return None if node is None or device not in self._own.get(node, (device,)) else node

    def free(self, node: int, state: State) -> list[str]:
        """Its devices on a node of it that nobody is on."""
        free, own = state.free_devices(state.numbered[self.numbers[node]].node.id), self._own.get(node)
        return [device.id for device in free if own is None or device.id in own]

    def free_count(self, node: int, state: State, kept: Container[str] = ()) -> int:
        """How many of its devices on a node nobody is on, without those that are kept."""
        if not kept and node not in self._own:
            return len(state.numbered[self.numbers[node]].free)
        return sum(device not in kept for device in self.free(node, state))

    def has_all(self, window: dict[int, None]) -> bool:
        """Whether a window is the whole pool."""
        return window is self._all

    def running(self, window: dict[int, None], state: State) -> Iterable[Job]:
        """The jobs on those nodes, and perhaps others."""
        if window is self._all:
            return state.running.values()
        jobs: dict[str, Job] = {}
        for node in window:
            for device in state.numbered[self.numbers[node]].node.devices:
                for job in state.occupants(device.id):
                    jobs[job.id] = job
        return jobs.values()


def pools_of(state: State) -> list[Pool]:
    """All nodes that have devices, those with the least memory first; of those, the ones that are there for longest."""
    pools: dict[tuple[object, ...], Pool] = {}
    for books in state.numbered:
        node = books.node
        by_kind: dict[str, list[Device]] = {}
        for device in node.devices:
            by_kind.setdefault(device.kind, []).append(device)
        for kind, devices in by_kind.items():
            least = min(device.memory_bytes for device in devices)
            own = frozenset(device.id for device in devices) if len(by_kind) > 1 else frozenset()
            key = (node.domain, len(devices), least, node.first_end, kind)
            pools.setdefault(key, Pool(len(devices), least, node.first_end, devices[0])).add(books.number, own)
    return sorted(pools.values(), key=lambda pool: (pool.least_bytes, -pool.ends_at))
