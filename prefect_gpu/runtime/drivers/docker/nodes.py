"""What a Swarm's node is to the scheduler: its devices, cores and place, from what it says of itself and its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from prefect_gpu.scheduling.cluster import Device, Node
from prefect_gpu.units import parse_bytes

PREFIX = "prefect-gpu."
GPU_RESOURCES = ("NVIDIA-GPU", "gpu", "GPU")  # the names that dockerd's node-generic-resources commonly has
_DEFAULT_MEMORY = "8GiB"


def node_of_engine(told: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> SwarmNode:
    """A single Engine as a node.

    Args:
        told: What the Engine says of itself.
        name: What it is called.
        labels: Those that count where the Engine has none of their names.
    """
    own = dict(entry.partition("=")[::2] for entry in told.get("Labels") or ())
    named = (entry.get("NamedResourceSpec") for entry in told.get("GenericResources") or ())
    return SwarmNode(
        id=told["ID"],
        name=name,
        address="",
        up=True,
        open=True,
        labels={**labels, **own},
        cores=int(told["NCPU"]),
        memory_bytes=int(told["MemTotal"]),
        gpus=tuple(one["Value"] for one in named if one and one["Kind"] in GPU_RESOURCES),
    )


@dataclass(frozen=True)
class SwarmNode:
    """A node as the manager has it.

    Attributes:
        id: The Swarm's id of it.
        name: Its host name, which is what the scheduler and people call it.
        address: Its address in the Swarm.
        up: Whether the manager hears from it.
        open: Whether it takes work; one that is drained or paused does not, and what runs there goes on.
        labels: Those of its Engine, and over them those that the manager gave it.
        cores: How many.
        memory_bytes: Main memory.
        gpus: UUIDs of its GPUs, if its Engine declares them as generic resources.
    """

    id: str
    name: str
    address: str
    up: bool
    open: bool
    labels: Mapping[str, str]
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> SwarmNode:
        """Read what the manager's API says of a node."""
        described, spec, status = told["Description"], told["Spec"], told["Status"]
        resources = described["Resources"]
        named = (entry.get("NamedResourceSpec") for entry in resources.get("GenericResources") or ())
        return cls(
            id=told["ID"],
            name=described["Hostname"],
            address=status.get("Addr", ""),
            up=status["State"] == "ready",
            open=spec["Availability"] == "active",
            labels={**(described.get("Engine", {}).get("Labels") or {}), **(spec.get("Labels") or {})},
            cores=int(resources["NanoCPUs"] // 1_000_000_000),
            memory_bytes=int(resources["MemoryBytes"]),
            gpus=tuple(one["Value"] for one in named if one and one["Kind"] in GPU_RESOURCES),
        )

    def stated(self, labels: Mapping[str, str] | None) -> SwarmNode:
        """The same node, with labels that count more than its own."""
        return replace(self, labels={**self.labels, **labels}) if labels else self

    def label(self, name: str, default: str = "") -> str:
        """The value of one of our labels."""
        return self.labels.get(PREFIX + name, default)

    def as_node(self) -> Node:
        """The node, for the scheduler.

        Raises:
            ValueError: A label's value makes no sense. The message names node, label, value and remedy.
        """
        if self.gpus:
            memory = self._bytes("gpu-memory", "state the memory of each of its GPUs, such as 80GiB")
            kind = self.label("gpu-kind", "NVIDIA GPU")
            devices = tuple(Device(uuid, kind, memory) for uuid in self.gpus)
        else:
            memory = self._bytes("virtual-device-memory", "state the memory of each, such as 8GiB", _DEFAULT_MEMORY)
            devices = tuple(
                Device(f"{self.name}/virtual-{number}", "virtual", memory, virtual=True)
                for number in range(self._count("virtual-devices"))
            )
        return Node(
            self.name,
            devices,
            tuple(range(self._cores())),
            rack=self.label("rack"),
            domain=self.label("domain"),
            network_bps=self._bytes("network-bytes-per-s", "state bytes per second, such as 125MB", "0B") + 0.0,
            uplink_bps=self._bytes("uplink-bytes-per-s", "state bytes per second, such as 125MB", "0B") + 0.0,
        )

    def _bytes(self, name: str, remedy: str, default: str | None = None) -> int:
        value = self.label(name, default or "")
        try:
            return 0 if value in ("0", "0B") else parse_bytes(value, field=PREFIX + name)
        except ValueError:
            raise ValueError(f"Node {self.name} has the label {PREFIX}{name}={value!r}: {remedy}.") from None

    def _cores(self) -> int:
        """How many of its cores are handed out: all, unless a label says fewer."""
        count = self._count("cores", str(self.cores))
        if not 1 <= count <= self.cores:
            raise ValueError(
                f"Node {self.name} has the label {PREFIX}cores='{count}', and its machine has {self.cores}: give a "
                f"number from 1 to {self.cores}."
            )
        return count

    def _count(self, name: str, default: str = "0") -> int:
        value = self.label(name, default)
        if not value.isdigit():
            raise ValueError(f"Node {self.name} has the label {PREFIX}{name}={value!r}: give a whole number.")
        return int(value)
