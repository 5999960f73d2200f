"""What there is to schedule on: nodes with devices and cores, queues with limits, and placements upon them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One GPU, or one *virtual* device that stands for none.

    Attributes:
        id: UUID of a GPU; ``virtual-N`` otherwise. Unique in the cluster.
        kind: Product name; ``virtual`` for a virtual device.
        memory_bytes: Memory that runs may be granted.
        cores: Cores of the node that are near the device (NUMA); empty if unknown.
    """

    id: str
    kind: str
    memory_bytes: int
    virtual: bool = False
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Node:
    """One machine: its devices and the core numbers that runs may be bound to."""

    id: str
    devices: tuple[Device, ...]
    cpus: tuple[int, ...]


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
    """Everything that Prefect's users have limited: the pool, its queues, and this worker (``--limit``)."""

    queues: tuple[Queue, ...] = ()
    pool_paused: bool = False
    pool_limit: int | None = None
    pool_active_elsewhere: int = 0
    worker_limit: int | None = None


@dataclass(frozen=True)
class Placement:
    """Where one job runs.

    Attributes:
        node: The node's id.
        devices: Ids of the devices granted, in the node's order; empty for a run that needs none.
        cpus: Core numbers that the run is bound to.
        memory_bytes: Memory granted on *each* of the devices.
        shared: Whether other runs may be on the same devices.
    """

    node: str
    devices: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_bytes: int = 0
    shared: bool = False
