"""Which jobs fit together on empty nodes? Counts only: no device is granted here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Request

if TYPE_CHECKING:
    from prefect_gpu.scheduling.decision import Decision
    from prefect_gpu.scheduling.model.jobs import Job

Spot = tuple[int, int]  # (number of a node, devices there)


def lasting(node: Node) -> tuple[Device, ...]:
    """The devices of a node; none, if it or one of them leaves service, as plans are made as if all nodes stayed."""
    return node.devices if node.first_end == math.inf else ()


class Packing:
    """Free devices per node, filled first fit: each job on the first node that fits.

    A job larger than any node that may span nodes goes on wholly free nodes and one more with the rest.
    What is put in never comes out, so the first node that fits a size only ever moves on: one pass over the nodes
    for each size, however many jobs there are.

    Args:
        nodes: The nodes, in the order in which they are filled.
        taken: Devices already taken on each, by jobs that stay where they are.
    """

    def __init__(self, nodes: Sequence[Node], taken: dict[int, int] | None = None) -> None:
        self._sizes = [len(lasting(node)) for node in nodes]
        self._least_bytes = [node.least_memory_bytes for node in nodes]
        self._domains = [node.domain for node in nodes]
        self.free = list(self._sizes)
        for number, devices in (taken or {}).items():
            self.free[number] = max(0, self.free[number] - devices)
        self.total = sum(self.free)
        self.largest = max(self._sizes, default=0)
        self._first: dict[tuple[int, int], int] = {}

    def put(self, request: Request, room_bytes: int = 0) -> list[Spot] | None:
        """Put in a job whose devices need so many bytes at least; None, and nothing changed, if it does not fit."""
        gpus = request.gpus
        if request.workers * gpus > self.total:
            return None
        least = max(request.gpu_memory_bytes or 0, room_bytes)
        if request.workers == 1 and gpus <= self.largest:  # parameter servers need no device
            number = self._first_with(gpus, least)
            if number is None:
                return None
            self.free[number] -= gpus
            self.total -= gpus
            return [(number, gpus)]
        return self._put_many(request, least)

    def _first_with(self, gpus: int, least: int) -> int | None:
        key = (gpus, least)
        free, bytes_ = self.free, self._least_bytes
        number = self._first.get(key, 0)
        end = len(free)
        while number < end and (free[number] < gpus or bytes_[number] < least):
            number += 1
        self._first[key] = number
        return number if number < end else None

    def _put_many(self, request: Request, least: int) -> list[Spot] | None:
        for domain in dict.fromkeys(self._domains):
            spots = (
                self._spanning(request.gpus, least, domain)
                if request.spans
                else self._gang(request.gpus, request.workers, least, domain)
            )
            if spots is not None:
                for number, gpus in spots:
                    self.free[number] -= gpus
                    self.total -= gpus
                return spots
        return None

    def _spanning(self, gpus: int, least: int, domain: str) -> list[Spot] | None:
        count, rest = divmod(gpus, self.largest)
        usable = [n for n, name in enumerate(self._domains) if name == domain and self._least_bytes[n] >= least]
        whole = [n for n in usable if self.free[n] == self._sizes[n] == self.largest][:count]
        if len(whole) < count:
            return None
        spots = [(number, self.largest) for number in whole]
        if rest:
            last = next((n for n in usable if n not in whole and self.free[n] >= rest), None)
            if last is None:
                return None
            spots.append((last, rest))
        return spots

    def _gang(self, gpus: int, workers: int, least: int, domain: str) -> list[Spot] | None:
        spots: list[Spot] = []
        for number, name in enumerate(self._domains):
            if name != domain or self._least_bytes[number] < least:
                continue
            here = min(workers - len(spots), self.free[number] // gpus if gpus else workers)
            spots += [(number, gpus)] * here
            if len(spots) == workers:
                return spots
        return None


def taken_by(jobs: list[Job], decision: Decision) -> dict[int, int]:
    """Devices that these running jobs hold, by number of the node."""
    taken: dict[int, int] = {}
    for job in jobs:
        for device in job.placement.all_devices if job.placement else ():
            if decision.state.has_node(device):
                number = decision.state.number_of(device)
                taken[number] = taken.get(number, 0) + 1
    return taken
