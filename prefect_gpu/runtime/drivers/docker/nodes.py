"""What a Swarm's node is to the scheduler: its devices, cores and place, from what it says of itself and its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_gpu.runtime.telemetry.declared import Declared, declared
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.units import parse_bytes

PREFIX = "prefect-gpu."
_OF_ITSELF = frozenset(
    PREFIX + name for name in ("virtual-devices", "virtual-device-memory", "cores", "gpus", "gpu-memory", "gpu-kind")
)
"""What a node of a Swarm may say: what it has. Where it is, and at which address, its manager says."""
GPU_RESOURCES = ("NVIDIA-GPU", "gpu", "GPU")  # the names that dockerd's node-generic-resources commonly has
_DEFAULT_MEMORY = "8GiB"


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG instance, as far as it is known.

    Attributes:
        uuid: ``GPU-...`` or ``MIG-...``.
        kind: Product name; empty if unknown.
        memory_bytes: What runs can use of its memory; 0 if unknown.
    """

    uuid: str
    kind: str = ""
    memory_bytes: int = 0


def node_of_engine(told: Mapping[str, Any], name: str, virtual: Mapping[str, str]) -> SwarmNode:
    """A single Engine as a node.

    Args:
        told: What the Engine says of itself.
        name: What it is called.
        virtual: Labels of virtual devices that count where no others of their names do, if it has no GPU.
    """
    own = dict(entry.partition("=")[::2] for entry in told.get("Labels") or ())
    return SwarmNode(
        id=told["ID"],
        name=name,
        address="",
        up=True,
        open=True,
        labels=own,
        cores=int(told["NCPU"]),
        memory_bytes=int(told["MemTotal"]),
        gpus=_declared(told),
        virtual=virtual,
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
        labels: Those of its Engine, as far as they say what it has, and over them those that the manager gave it.
        cores: How many.
        memory_bytes: Main memory.
        gpus: Its GPUs, if its Engine declares them as generic resources, or once a probe has found them.
        ignored: Names of labels that its Engine has and that only the manager may give.
        virtual: Labels of virtual devices that count where ``labels`` has none of their names, if it has no GPU.
    """

    id: str
    name: str
    address: str
    up: bool
    open: bool
    labels: Mapping[str, str]
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    virtual: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> SwarmNode:
        """Read what the manager's API says of a node."""
        described, spec, status = told["Description"], told["Spec"], told["Status"]
        resources = described["Resources"]
        own = described.get("Engine", {}).get("Labels") or {}
        ignored = {name for name in own if name.startswith(PREFIX)} - _OF_ITSELF
        return cls(
            id=told["ID"],
            name=described["Hostname"],
            address=status.get("Addr", ""),
            up=status["State"] == "ready",
            open=spec["Availability"] == "active",
            labels={name: own[name] for name in own.keys() - ignored} | (spec.get("Labels") or {}),
            cores=int(resources["NanoCPUs"] // 1_000_000_000),
            memory_bytes=int(resources["MemoryBytes"]),
            gpus=_declared(resources),
            ignored=tuple(sorted(ignored - (spec.get("Labels") or {}).keys())),
        )

    def stated(self, labels: Mapping[str, str] | None) -> SwarmNode:
        """The same node, with labels that count more than its own."""
        return replace(self, labels={**self.labels, **labels}) if labels else self

    def label(self, name: str, default: str = "") -> str:
        """The value of one of our labels."""
        return self.labels.get(PREFIX + name, self.virtual.get(PREFIX + name, default))

    @property
    def needs_probe(self) -> bool:
        """Whether neither its Engine nor its labels say which devices it has, so that a probe has to find out.

        Raises:
            ValueError: As :meth:`as_node`.
        """
        own = replace(self, virtual={})  # those are an assumption, and no word of the node
        return not self.gpus and PREFIX + "gpus" not in self.labels and not own._virtual()

    def with_gpus(self, gpus: tuple[Gpu, ...]) -> SwarmNode:
        """The same node, and what a probe has found there. One that should have GPUs has no virtual devices instead:
        who pays for them must not find out from slow runs that these were on the CPU."""
        return replace(self, gpus=gpus, virtual={})

    def as_node(self) -> Node:
        """The node, for the scheduler.

        Raises:
            ValueError: A label's value makes no sense. The message names node, label, value and remedy.
        """
        gpus = self.gpus
        if PREFIX + "gpus" in self.labels:
            named = (uuid.strip() for uuid in self.label("gpus").split(","))
            gpus = tuple(Gpu(uuid) for uuid in named if uuid)
            if len(set(gpus)) < len(gpus):
                raise ValueError(
                    f"Node {self.name} has the label {PREFIX}gpus={self.label('gpus')!r}: name each of its GPUs once."
                )
        if gpus:
            devices = tuple(self._device(gpu) for gpu in gpus)
        else:
            memory = self._bytes("virtual-device-memory", "state the memory of each, such as 8GiB", _DEFAULT_MEMORY)
            devices = tuple(
                Device(
                    f"{self.name}/virtual-{number}",
                    one.kind,
                    one.memory_bytes or memory,
                    virtual=True,
                    capability=one.capability,
                    links=tuple(f"{self.name}/virtual-{other}" for other in one.links),
                )
                for number, one in enumerate(self._virtual())
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

    def _device(self, gpu: Gpu) -> Device:
        """A GPU, for the scheduler: what labels say of it counts more than what was found."""
        if not gpu.uuid.startswith(("GPU-", "MIG-")):  # a number means another GPU in a container than on its node
            raise ValueError(
                f"Node {self.name} has a GPU named {gpu.uuid!r}: its Engine's generic resources, or the label "
                f"{PREFIX}gpus, must name GPUs by UUID, as `nvidia-smi -L` does."
            )
        memory = gpu.memory_bytes
        if not memory or self.label("gpu-memory"):
            memory = self._bytes("gpu-memory", "state the memory of each of its GPUs, such as 80GiB")
        return Device(gpu.uuid, self.label("gpu-kind") or gpu.kind or "NVIDIA GPU", memory)

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

    def _virtual(self) -> list[Declared]:
        """The virtual devices that it is said to have."""
        value = self.label("virtual-devices", "0")
        try:
            return declared(value)
        except ValueError as error:
            raise ValueError(f"Node {self.name} has the label {PREFIX}virtual-devices={error}.") from None

    def _count(self, name: str, default: str = "0") -> int:
        value = self.label(name, default)
        if not value.isdigit():
            raise ValueError(f"Node {self.name} has the label {PREFIX}{name}={value!r}: give a whole number.")
        return int(value)


def _declared(resources: Mapping[str, Any]) -> tuple[Gpu, ...]:
    """The GPUs among the generic resources of an Engine, which are no more than names there."""
    named = (entry.get("NamedResourceSpec") for entry in resources.get("GenericResources") or ())
    return tuple(Gpu(one["Value"]) for one in named if one and one["Kind"] in GPU_RESOURCES)
