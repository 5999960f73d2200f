"""The nodes of allocations, as their agents describe them, and as the scheduler is to know them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefect_gpu.runtime.clock import CLOCK
from prefect_gpu.runtime.drivers.slurm.pilots import Pilot
from prefect_gpu.scheduling.model.cluster import Device, Node

_MARGIN_S = 2.0  # Slurm counts whole seconds, and ends nothing later


@dataclass
class Lent:
    """A node of an allocation whose agent has said what it is.

    Attributes:
        node: As the scheduler knows it.
        heard_at: When its agent was last known to be connected, monotonic seconds.
        address: Where other nodes reach it.
        ending: Whether Slurm ends it.
    """

    node: Node
    pilot: Pilot
    agent: str
    adjustable: bool
    heard_at: float
    address: str
    ending: bool = False
    _end: float | None = None

    @property
    def host(self) -> str:
        """Its machine, as Slurm calls it: without the domain."""
        return self.node.id.partition(".")[0].partition("+")[0]

    def learn_end(self) -> None:
        """Bring the node's end up to date with its allocation's, which an administrator may move."""
        job = self.pilot.job
        if job is not None and job.ends_at != self._end:
            self._end = job.ends_at
            ends_at = None if job.ends_at is None else CLOCK.of(job.ends_at) - _MARGIN_S
            why = f"the time of Slurm's job {job.id} is up"
            self.node = dataclasses.replace(self.node, ends_at=ends_at, ends_why=why if ends_at is not None else "")


def node_name(told: Mapping[str, Any], part: int = 0) -> str:
    """What a node is called. Two parts of a job may have one machine, and are two nodes then.

    Example:
        >>> node_name({"host": "gpu17", "job": "4711"}), node_name({"host": "gpu17", "job": "4711"}, 1)
        ('gpu17.4711', 'gpu17+1.4711')
    """
    return f"{told['host']}{f'+{part}' if part else ''}.{told['job']}"


def node_of(name: str, told: Mapping[str, Any]) -> Node:
    """What an agent says of its node, for the scheduler."""
    names = {one["id"]: f"{name}/{one['id']}" if one["virtual"] else str(one["id"]) for one in told["devices"]}
    devices = tuple(
        Device(
            names[one["id"]],
            str(one["kind"]),
            int(one["memory_bytes"]),
            bool(one["virtual"]),
            tuple(one["cores"]),
            capability=None if one["capability"] is None else tuple(one["capability"]),
            links=tuple(names[other] for other in one["links"] if other in names),
        )
        for one in told["devices"]
    )
    switches = [str(one) for one in told.get("switches", ())]  # an agent of an older version tells of none
    # Nodes below different topmost switches do not reach each other: Slurm gives no job some of both.
    domain = switches[0] if len(switches) > 1 else ""
    return Node(name, devices, tuple(told["cpus"]), rack=switches[-1] if switches else "", domain=domain)
