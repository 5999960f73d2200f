"""The nodes that a controller manages, as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from prefect_gpu.runtime.clock import CLOCK, Clock
from prefect_gpu.runtime.devices.cordons import Cordoned
from prefect_gpu.scheduling.model.cluster import Device, Node, Placement

UP, CLOSED, GONE = "up", "closed", "gone"
"""What a node is: it takes work; it is there and takes none, and what runs there goes on; it is down or cut off."""

_CLOCK_SET_S = 0.5  # from which difference on a clock was set, and not read a moment later
_GONE_KEPT = 20  # nodes that are gone are shown, but a cluster whose machines come and go must not pile them up


class Fleet:
    """Nodes and their devices, by id.

    A device that has gone is still known: a run that had it may end later, and its history says what it ran on.

    Args:
        nodes: Those that there are at first.

    Attributes:
        cordoned: Devices that are out of service, or will be, and why. Their nodes take work without those that are.
        unwell: What is wrong with devices that are in service nevertheless, in words.
        leaving: When nodes leave service, by id, or all of them, under "": Unix seconds, and why. A node that is still
            there after that has no device in service.
    """

    def __init__(self, nodes: Iterable[Node] = (), clock: Clock = CLOCK) -> None:
        self._clock = clock
        self._nodes: dict[str, Node] = {}
        self._others: dict[str, tuple[Node, str]] = {}  # with the state; who has been there longest first
        self._devices: dict[str, Device] = {}
        self._node_of: dict[str, str] = {}
        self.cordoned: Mapping[str, Cordoned] = {}
        self.leaving: dict[str, tuple[float, str]] = {}
        self._moments: dict[float, float] = {}
        self.unwell: dict[str, str] = {}
        self.change(nodes)

    def change(self, nodes: Iterable[Node], closed: Iterable[Node] = ()) -> None:
        """From now on there are these nodes, and no others.

        Args:
            closed: Nodes that are there too, and take no work.
        """
        now, shut = {node.id: node for node in nodes}, {node.id: node for node in closed}
        gone = {node.id: node for node, _ in self._others.values()} | self._nodes
        for name in (*now, *shut):
            gone.pop(name, None)
        newest = list(gone.items())[-_GONE_KEPT:]
        self._others = {name: (node, GONE) for name, node in newest} | {n: (node, CLOSED) for n, node in shut.items()}
        self._nodes = now
        self._devices |= {device.id: device for node in (*now.values(), *shut.values()) for device in node.devices}
        self._node_of = {device.id: node.id for node in now.values() for device in node.devices}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that take work, in order, without devices that are out of service."""
        return tuple(map(self._in_service, self._nodes.values()))

    def _in_service(self, node: Node) -> Node:
        leaves = self._end_of(node.id)
        if leaves is not None:
            at, why = leaves
            end = self._moment(at)
            if node.ends_at is None or end < node.ends_at:
                node = replace(node, ends_at=end, ends_why=why)
            if self._has_come(at):
                return replace(node, devices=())
        if self.cordoned.keys().isdisjoint(device.id for device in node.devices):
            return node
        found = (self._device_in_service(device) for device in node.devices)
        return replace(node, devices=tuple(device for device in found if device is not None))

    def _device_in_service(self, device: Device) -> Device | None:
        cordoned = self.cordoned.get(device.id)
        if cordoned is None:
            return device
        if cordoned.by is None or self.is_out(device.id):
            return None
        return replace(device, ends_at=self._moment(cordoned.by), ends_why=cordoned.reason)

    def _end_of(self, node: str) -> tuple[float, str] | None:
        """When a node leaves service, in Unix seconds, and why; None: it stays."""
        return min((self.leaving[name] for name in ("", node) if name in self.leaving), default=None)

    def _has_come(self, unix: float) -> bool:
        return unix <= self._clock.unix(self._clock())

    def _moment(self, unix: float) -> float:
        """A moment in the worker's time: the same each time it is asked for, unless the machine's clock was set."""
        known, now = self._moments.get(unix), self._clock.of(unix)
        if known is None or abs(known - now) > _CLOCK_SET_S:
            self._moments[unix] = known = now
        return known

    def is_out(self, device: str) -> bool:
        """Whether a device is out of service now."""
        return self.why_out(device) is not None

    def why_out(self, device: str) -> str | None:
        """Why a device is out of service now, in words; None: it is in service."""
        cordoned = self.cordoned.get(device)
        if cordoned is not None and cordoned.is_out(self._clock.unix(self._clock())):
            return cordoned.reason
        leaves = self._end_of(self._node_of[device]) if device in self._node_of else None
        return None if leaves is None or not self._has_come(leaves[0]) else f"its end has passed ({leaves[1]})"

    @property
    def known(self) -> tuple[tuple[Node, str], ...]:
        """All nodes by name, each :data:`UP`, :data:`CLOSED` or :data:`GONE`; of those that are gone the newest."""
        every = [*((node, UP) for node in self._nodes.values()), *self._others.values()]
        return tuple(sorted(every, key=lambda one: one[0].id))

    @property
    def device_ids(self) -> frozenset[str]:
        """The ids of the devices of all known nodes, whatever these are."""
        return frozenset(device.id for node, _ in self.known for device in node.devices)

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of the nodes that take work, in order, those included that are out of service."""
        return tuple(device for node in self._nodes.values() for device in node.devices)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the devices, each once."""
        return tuple(dict.fromkeys(device.kind for device in self.devices))

    @property
    def kind(self) -> str | None:
        """The kind of the devices, where it has to be guessed before a run is placed; None: there are no devices."""
        return next((device.kind for device in self.devices), None)

    def devices_of(self, placement: Placement) -> list[Device]:
        """The devices of a placement's first part, in the node's order."""
        return self.named(placement.devices)

    def named(self, ids: Iterable[str]) -> list[Device]:
        """The devices with these ids, in the order in which they are known."""
        wanted = set(ids)
        return [device for id_, device in self._devices.items() if id_ in wanted]

    def on_gpu(self, placement: Placement) -> bool:
        """Whether a run is on a device that is no virtual one."""
        return any(not device.virtual for device in self.named(placement.devices))
