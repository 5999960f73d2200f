"""What there is to schedule on: nodes with devices and cores, queues with limits, and placements upon them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from prefect_gpu.scheduling.model.shares import Shares


@dataclass(frozen=True)
class Device:
    """One GPU, or one *virtual* device that stands for none.

    Attributes:
        id: UUID of a GPU; ``virtual-N`` otherwise. Unique in the cluster.
        kind: Product name; ``virtual`` for a virtual device.
        memory_bytes: Memory that runs may be granted.
        cores: Cores of the node that are near the device (NUMA); empty if unknown.
        ends_at: When it leaves service, on the clock of events; None: nobody knows of an end.
        ends_why: Why, in words.
        capability: Its compute capability, (8, 0) for example; None: unknown.
        links: Ids of the devices of its node that it reaches over NVLink, directly or through a switch.
    """

    id: str
    kind: str
    memory_bytes: int
    virtual: bool = False
    cores: tuple[int, ...] = ()
    ends_at: float | None = None
    ends_why: str = ""
    capability: tuple[int, int] | None = None
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Node:
    """One machine: its devices, the core numbers that runs may be bound to, and where it stands.

    Attributes:
        cpus: Core numbers; empty if the cores of this node are not handed out.
        rack: Nodes of one rack reach each other at a lower cost (Liquid, eq. 2).
        domain: No gang straddles two domains.
        network_bps: Bandwidth of the node's network link, bytes per second; 0 if unknown.
        uplink_bps: Bandwidth between its rack and the others, which all nodes of the rack share; likewise.
        memory_bps: Bandwidth of the node's main memory, bytes per second; 0 if unknown.
        ends_at: When the node is gone, with all its devices; see :class:`Device`.
        ends_why: Why, in words.
    """

    id: str
    devices: tuple[Device, ...]
    cpus: tuple[int, ...]
    rack: str = ""
    domain: str = ""
    network_bps: float = 0.0
    uplink_bps: float = 0.0
    memory_bps: float = 0.0
    ends_at: float | None = None
    ends_why: str = ""

    @cached_property
    def groups(self) -> dict[str, str]:
        """The name of the group that each device belongs to: those of this node that are alike.

        It is the same whichever other devices the node has, and no other node has one of that name.
        """
        return {one.id: f"{self.id}/{one.kind}/{one.capability}/{one.memory_bytes >> 30}" for one in self.devices}

    @cached_property
    def least_memory_bytes(self) -> int:
        """Memory of its smallest device; 0 without any."""
        return min((device.memory_bytes for device in self.devices), default=0)

    @cached_property
    def first_end(self) -> float:
        """When it, or the first of its devices, leaves service; infinite if nobody knows of an end."""
        ends = (self.ends_at, *(device.ends_at for device in self.devices))
        return min((end for end in ends if end is not None), default=math.inf)


@dataclass(frozen=True)
class Queue:
    """A work queue of the pool.

    Attributes:
        priority: 1 is served first.
        limit: Runs of this queue that may be active at once; None is unlimited.
        active_elsewhere: How many of those are active under other workers.
    """

    id: str
    name: str = ""
    priority: int = 1
    paused: bool = False
    limit: int | None = None
    active_elsewhere: int = 0


@dataclass(frozen=True)
class Quotas:
    """Everything that is limited or promised: the pool, its queues, this worker (``--limit``), and owners.

    Attributes:
        slowdown_limit: How much other runs on its nodes may slow a run down (speed alone ÷ speed now) before it is
            stopped for them, in the profiles that stop runs for it; None: as those have it.
        shares: What is promised to whom, in the profiles that heed it; None: nothing.
    """

    queues: tuple[Queue, ...] = ()
    pool_paused: bool = False
    pool_limit: int | None = None
    pool_active_elsewhere: int = 0
    worker_limit: int | None = None
    slowdown_limit: float | None = None
    shares: Shares | None = None


@dataclass(frozen=True)
class Placement:
    """Where one job runs: on one node, or, for a gang, on several.

    Attributes:
        node: The node's id; for a gang the node of its first part.
        devices: Ids of the devices granted there, in the node's order; empty for a run that needs none.
        cpus: Core numbers that the run is bound to there.
        memory_bytes: Memory granted on *each* of the devices.
        shared: Whether other runs may be on the same devices.
        others: The further parts of a gang, each with no others of its own. Two parts may be on one node.
        servers: How many of the parts, counted from the last one, are parameter servers.
    """

    node: str
    devices: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_bytes: int = 0
    shared: bool = False
    others: tuple[Placement, ...] = ()
    servers: int = 0

    @property
    def parts(self) -> tuple[Placement, ...]:
        """All parts: this one, then the others."""
        return (self, *self.others)

    @property
    def all_devices(self) -> tuple[str, ...]:
        """The devices of all parts."""
        if not self.others:
            return self.devices
        return tuple(device for part in self.parts for device in part.devices)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the parts, each once, in order."""
        if not self.others:
            return (self.node,)
        return tuple(dict.fromkeys(part.node for part in self.parts))
