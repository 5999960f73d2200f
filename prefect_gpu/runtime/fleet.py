"""The nodes that a controller manages, as they are now."""

from __future__ import annotations

from collections.abc import Iterable

from prefect_gpu.scheduling.cluster import Device, Node, Placement


class Fleet:
    """Nodes and their devices, by id.

    A device that has gone is still known: a run that had it may end later, and its history says what it ran on.

    Args:
        nodes: Those that there are at first.
    """

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[str, Node] = {}
        self._devices: dict[str, Device] = {}
        self.change(nodes)

    def change(self, nodes: Iterable[Node]) -> None:
        """From now on there are these nodes, and no others."""
        self._nodes = {node.id: node for node in nodes}
        self._devices |= {device.id: device for device in self.devices}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, in order."""
        return tuple(self._nodes.values())

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of all nodes, in order."""
        return tuple(device for node in self._nodes.values() for device in node.devices)

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
