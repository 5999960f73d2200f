"""From chosen nodes and devices to a placement: memory, cores, and the parts of a gang."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.state import State

_NOBODY: Mapping[int, int] = {}


def grant(
    job: Job,
    node: Node,
    devices: tuple[str, ...],
    state: State,
    sharing: Sharing,
    also_bound: Mapping[int, int] = _NOBODY,
) -> Placement:
    """The placement of a job on these devices of one node.

    Args:
        also_bound: How many parts of the same gang are bound to each core already.
    """
    return Placement(
        node=node.id,
        devices=devices,
        cpus=choose_cpus(job, node, devices, state, also_bound),
        memory_bytes=sharing.granted_bytes(job, [state.device(device) for device in devices]),
        shared=job.request.shareable,
    )


def granted_gang(
    job: Job, workers: Sequence[tuple[Node, tuple[str, ...]]], servers: Sequence[Node], state: State, sharing: Sharing
) -> Placement:
    """The placement of a gang: a part for each worker, then one for each parameter server, which holds no device."""
    bound: dict[str, Counter[int]] = {}
    parts = []
    for node, devices in (*workers, *((node, ()) for node in servers)):
        on_node = bound.setdefault(node.id, Counter())
        part = grant(job, node, devices, state, sharing, on_node)
        on_node.update(part.cpus)
        parts.append(part)
    return joined(parts, len(servers))


def joined(parts: Sequence[Placement], servers: int = 0) -> Placement:
    """One placement of several parts."""
    first = parts[0]
    return Placement(first.node, first.devices, first.cpus, first.memory_bytes, first.shared, tuple(parts[1:]), servers)


def choose_cpus(
    job: Job, node: Node, devices: tuple[str, ...], state: State, also_bound: Mapping[int, int] = _NOBODY
) -> tuple[int, ...]:
    """Cores for a job: those with the fewest runs on them, near the device if that is known.

    Without a request, a run gets its devices' share of the node's cores (at least one). Cores are shared when more
    are asked for than are free: a run is never kept from a free device by a busy core.
    """
    if not node.cpus:
        return ()
    wanted = cores_wanted(job, node, len(devices))
    near = {core for device in devices for core in state.device(device).cores}
    load = state.core_load(node.id)
    ranked = sorted(node.cpus, key=lambda core: (load.get(core, 0) + also_bound.get(core, 0), core not in near, core))
    return tuple(sorted(ranked[: min(wanted, len(ranked))]))


def cores_wanted(job: Job, node: Node, devices: int) -> int:
    """Cores that an instance with so many devices asks for, or its share of the node's."""
    if job.request.cpus is not None:
        return job.request.cpus
    return max(1, len(node.cpus) // max(1, len(node.devices)) * max(1, devices))
