"""The books of nodes and devices: who is on what, and which nodes have how many devices free.

The index by free devices is what makes a decision cheap on thousands of them: nobody looks at nodes that are full.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job


class NodeBooks:
    """One node: its place in the list of nodes, and the positions of its devices that nobody is on."""

    __slots__ = ("cores", "free", "free_cores", "node", "number", "shape")

    def __init__(self, node: Node, number: int, shape: tuple[object, ...]) -> None:
        self.node = node
        self.number = number
        self.shape = shape
        self.free: list[int] = []
        self.cores = frozenset(node.cpus)
        self.free_cores = len(self.cores)  # cores that no job is bound to


class DeviceBooks:
    """Nodes, devices and their occupants."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.numbered: list[NodeBooks] = []
        self._books: dict[str, NodeBooks] = {}
        self._devices: dict[str, Device] = {}
        self._where: dict[str, tuple[NodeBooks, int]] = {}
        self._occupants: dict[str, dict[str, Job]] = {}
        self._core_load: dict[str, Counter[int]] = {}
        # (shape of the node, free devices on it): numbers of such nodes, ascending
        self._with_free: dict[tuple[tuple[object, ...], int], list[int]] = {}
        self.free_count = 0  # devices that nobody is on
        self.device_count = 0
        self.core_count = 0
        self.largest_node = 0  # devices on the node that has most
        self.device_sizes: tuple[int, ...] = ()  # bytes, each size once, ascending
        self.kinds: tuple[str, ...] = ()  # of all devices, each once
        self.all_uniform = True  # each node's devices are all of one kind
        self.any_end = False  # whether a node or a device is known to leave service
        self.version = 0  # of the nodes: whoever remembers something about them sees when it is stale
        self.changes = 0  # what happened that a decision about running jobs could depend on; a submission is none
        self._shareable: dict[str, None] = {}  # devices whose occupants all share; a dict for its order
        self.crowded: set[str] = set()  # devices with several occupants: not free when one of them is gone

    # -- questions ------------------------------------------------------------------------------------------------

    def device(self, device_id: str) -> Device:
        """The device of that id. Raises KeyError if no node has ever had it."""
        return self._devices[device_id]

    def all_devices(self) -> Iterator[Device]:
        """The devices of all nodes, in order."""
        return (device for books in self.numbered for device in books.node.devices)

    def occupants(self, device_id: str) -> list[Job]:
        """The jobs that hold (a part of) the device."""
        on_it = self._occupants.get(device_id)
        return list(on_it.values()) if on_it else []

    def is_free(self, device_id: str) -> bool:
        """Whether nobody is on the device."""
        return not self._occupants.get(device_id)

    def core_load(self, node_id: str) -> Counter[int]:
        """How many jobs are bound to each core of a node."""
        return self._core_load.get(node_id, Counter())

    def has_node(self, device_id: str) -> bool:
        """Whether the device is on one of the nodes, as they are now."""
        return device_id in self._where

    def number_of(self, device_id: str) -> int:
        """The number of the node that has the device. Raises KeyError if none has it now."""
        return self._where[device_id][0].number

    def node_of(self, device_id: str) -> str:
        """The node that has the device. Raises KeyError if none has it now."""
        return self._where[device_id][0].node.id

    def group_of(self, device_id: str) -> str:
        """The group of like devices of its node that it belongs to. Raises KeyError if no node has it now."""
        return self._where[device_id][0].node.groups[device_id]

    def free_on(self, node_id: str) -> int:
        """Devices of the node that nobody is on."""
        return len(self._books[node_id].free)

    def free_cores_on(self, node_id: str) -> int:
        """Cores of the node that no job is bound to."""
        return self._books[node_id].free_cores

    def free_devices(self, node_id: str) -> list[Device]:
        """The devices of the node that nobody is on, in the node's order."""
        books = self._books[node_id]
        return [books.node.devices[position] for position in books.free]

    def groups_with_free(self, least: int) -> Iterator[tuple[NodeBooks, int, list[int]]]:
        """Nodes with at least so many free devices, in groups that are alike.

        Yields:
            (the first node of the group, free devices on each, numbers of the nodes in ascending order); in no
            particular order of groups. ``numbered[n]`` is the node of a number.
        """
        for (_, free), numbers in self._with_free.items():
            if free >= least and numbers:
                yield self.numbered[numbers[0]], free, numbers

    def shared_devices(self) -> list[str]:
        """Devices that have occupants, all of whom share."""
        return list(self._shareable)

    def held(self) -> Iterator[tuple[str, dict[str, Job]]]:
        """The devices that somebody is on, with those jobs."""
        return ((device, jobs) for device, jobs in self._occupants.items() if jobs)

    # -- changes --------------------------------------------------------------------------------------------------

    def set_nodes(self, nodes: tuple[Node, ...]) -> None:
        """Replace the nodes. Devices that are gone are remembered as long as a job holds them."""
        nodes = tuple(map(_with_ends, nodes))
        self.any_end = any(node.first_end != math.inf for node in nodes)
        self.nodes = {node.id: node for node in nodes}
        held = {id_: device for id_, device in self._devices.items() if self._occupants.get(id_)}
        self._devices = held | {device.id: device for node in nodes for device in node.devices}
        self.numbered = [NodeBooks(node, number, _shape(node)) for number, node in enumerate(nodes)]
        self._books = {books.node.id: books for books in self.numbered}
        self._where = {
            device.id: (books, position)
            for books in self.numbered
            for position, device in enumerate(books.node.devices)
        }
        self._with_free = {}
        self.free_count = 0
        self.device_count = sum(len(node.devices) for node in nodes)
        self.core_count = sum(len(node.cpus) for node in nodes)
        self.largest_node = max((len(node.devices) for node in nodes), default=0)
        self.device_sizes = tuple(sorted({device.memory_bytes for node in nodes for device in node.devices}))
        self.all_uniform = all(len(set(map(_likeness, node.devices))) <= 1 for node in nodes)
        self.kinds = tuple(sorted({device.kind for node in nodes for device in node.devices}))
        self.version += 1
        for books in self.numbered:
            load: Mapping[int, int] = self._core_load.get(books.node.id, {})
            books.free_cores = sum(1 for core in books.cores if not load.get(core))
            books.free = [at for at, device in enumerate(books.node.devices) if not self._occupants.get(device.id)]
            self.free_count += len(books.free)
            insort(self._with_free.setdefault((books.shape, len(books.free)), []), books.number)

    def occupy(self, job: Job, change: int = 1) -> None:
        """Enter a job on the devices and cores of its placement; a change of -1 removes it there."""
        placement = job.placement
        assert placement is not None
        for part in placement.parts:
            for device_id in part.devices:
                on_it = self._occupants.setdefault(device_id, {})
                was_free = not on_it
                if change > 0:
                    on_it[job.id] = job
                else:
                    on_it.pop(job.id, None)
                if was_free is bool(on_it):
                    self._mark(device_id, free=not on_it)
                if job.request.shareable or len(on_it) > (change > 0):
                    self._note_company(device_id, on_it)
            if part.cpus:
                self._bind(part.node, part.cpus, change)

    def _bind(self, node_id: str, cpus: tuple[int, ...], change: int) -> None:
        """Count one job more or less on each of these cores."""
        load, books = self._core_load.setdefault(node_id, Counter()), self._books.get(node_id)
        for core in cpus:
            load[core] += change
            # One job where there was none, or none where there was one.
            if load[core] == (change > 0) and books is not None and core in books.cores:
                books.free_cores -= change

    def _note_company(self, device_id: str, on_it: dict[str, Job]) -> None:
        if on_it and all(job.request.shareable for job in on_it.values()):
            self._shareable[device_id] = None
        else:
            self._shareable.pop(device_id, None)
        if len(on_it) > 1:
            self.crowded.add(device_id)
        else:
            self.crowded.discard(device_id)

    def _mark(self, device_id: str, *, free: bool) -> None:
        where = self._where.get(device_id)
        if where is None:  # its node is gone
            return
        books, position = where
        old = self._with_free[books.shape, len(books.free)]
        del old[bisect_left(old, books.number)]
        if free:
            insort(books.free, position)
        else:
            books.free.remove(position)
        self.free_count += 1 if free else -1
        insort(self._with_free.setdefault((books.shape, len(books.free)), []), books.number)


def _shape(node: Node) -> tuple[object, ...]:
    """What makes nodes alike for placing: nodes of one shape and as many free devices are equally good.

    A node whose devices differ is like no other: which of its devices are free matters.
    """
    alike = set(map(_likeness, node.devices))
    linked_to = {len(device.links) for device in node.devices}
    if len(alike) > 1 or linked_to - {0, len(node.devices) - 1} or len(linked_to) > 1:
        return (len(node.devices), node.id)
    return (len(node.devices), *alike, *(linked_to - {0}))


def _likeness(device: Device) -> tuple[object, ...]:
    return device.kind, device.memory_bytes, device.ends_at, device.capability


def _with_ends(node: Node) -> Node:
    """The node, whose devices leave service with it at the latest."""
    end = node.ends_at
    if end is None:
        return node
    return replace(
        node,
        devices=tuple(
            device
            if device.ends_at is not None and device.ends_at <= end
            else replace(device, ends_at=end, ends_why=node.ends_why)
            for device in node.devices
        ),
    )
