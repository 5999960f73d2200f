"""What the nodes could do for a request if they were empty, and why they cannot."""

from __future__ import annotations

from bisect import bisect_left

from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.model.kinds import linked, why_unwanted
from prefect_gpu.scheduling.state.devices import DeviceBooks

INSTANCES_PER_CORE = 16
"""So many instances without a device may a run have for each core of the cluster. They share cores, but each is a
process with an interpreter of its own, and with more of them no machine would get on."""


class Capability:
    """Remembers, for each kind of request, which devices it could ever use; made anew when the nodes change."""

    def __init__(self, state: DeviceBooks) -> None:
        self._state = state
        self._version = -1
        self._usable: dict[tuple[Request, int, frozenset[str] | None], frozenset[str]] = {}

    def usable(self, request: Request, room_bytes: int = 0, kinds: frozenset[str] | None = None) -> frozenset[str]:
        """Ids of the devices that a job could be given if the nodes were empty; empty if it can never start.

        Args:
            room_bytes: Memory that the devices must have at least, whatever the request says.
            kinds: Only devices of these kinds; None: of all.
        """
        if self._version != self._state.version:
            self._usable, self._version = {}, self._state.version
        found = self._usable.get((request, room_bytes, kinds))
        if found is None:
            found = frozenset(_usable_devices(request, room_bytes, kinds, self._state))
            self._usable[request, room_bytes, kinds] = found
        return found

    def possible(self, request: Request) -> bool:
        """Whether some node, or some nodes together, could hold the job if they were empty."""
        if _too_many(request, self._state):
            return False
        return request.total_gpus == 0 or bool(self.usable(request))

    def may_hold(self, request: Request) -> bool:
        """Whether the cluster could hold the job, as far as is known: before any device is known, it might."""
        return not self._state.device_sizes or self.possible(request)

    def room_for(self, job: Job) -> int:
        """Memory of the devices that a job waits for because it is expected to need so much; 0: any will do.

        It is the size of some device, and of devices that the job could be given if the nodes were empty: an estimate
        chooses among devices, and never keeps a job from all of them as what it declares can. A job over several nodes
        takes them as they come.
        """
        need, sizes, request = job.estimate.memory_bytes, self._state.device_sizes, job.request
        if need is None or len(sizes) < 2 or request.total_gpus == 0 or request.spans:
            return 0
        enough = bisect_left(sizes, need)
        return next((size for size in reversed(sizes[1 : enough + 1]) if self.usable(request, size)), 0)


def _too_many(request: Request, state: DeviceBooks) -> bool:
    if not request.is_gang or not state.core_count:  # no cores are handed out: nobody knows how many there are
        return False
    return request.instances_without_devices > INSTANCES_PER_CORE * state.core_count


def _usable_devices(request: Request, room_bytes: int, kinds: frozenset[str] | None, state: DeviceBooks) -> list[str]:
    least = max(request.gpu_memory_bytes or 0, room_bytes)
    wants = request.wants
    by_domain: dict[str, list[list[str]]] = {}
    for books in state.numbered:
        devices = _in_blocks(books.node, request.gpus, least) if room_bytes else books.node.devices
        large = [device for device in devices if device.memory_bytes >= least]
        if kinds is not None:
            large = [device for device in large if device.kind in kinds]
        if wants is not None:
            large = [device for device in large if wants.accepts(device)]
            if request.needs_links:
                groups = [group for group in linked(large) if len(group) >= request.gpus]
                large = [one for group in groups[-request.is_gang :] for one in group]
        enough = [device.id for device in large]
        by_domain.setdefault(books.node.domain, []).append(enough)
    usable: list[str] = []
    for nodes in by_domain.values():
        if request.spans:
            nodes = [devices for devices in nodes if devices]
            fits = sum(len(devices) for devices in nodes) >= request.total_gpus
        else:
            nodes = [devices for devices in nodes if len(devices) >= max(1, request.gpus)]
            fits = sum(len(devices) // max(1, request.gpus) for devices in nodes) >= request.workers
        if fits:
            usable += [device for devices in nodes for device in devices]
    return usable


def _in_blocks(node: Node, gpus: int, least: int) -> list[Device]:
    """The devices of the aligned blocks that are large enough throughout: every placement policy finds room in those.

    HiveD's takes several devices as such blocks only. Of what runs declare it asks the same, but that is their wish.
    """
    size = 1 << max(0, gpus - 1).bit_length()
    blocks = [node.devices[at : at + size] for at in range(0, len(node.devices), size)]
    whole = [block for block in blocks if len(block) == size or len(blocks) == 1]
    return [device for block in whole if min(one.memory_bytes for one in block) >= least for device in block]


def explain_impossible(request: Request, state: DeviceBooks) -> str:
    """Why no node can ever hold a request: names the field, the value and the remedy."""
    if _too_many(request, state):
        asked = f"ps={request.servers}" if request.gpus else f"workers={request.workers} and ps={request.servers}"
        return (
            f"{asked} without GPUs are more than the {state.core_count} cores of this worker can serve "
            f"({INSTANCES_PER_CORE * state.core_count}): ask for fewer"
        )
    devices = {node.id: list(node.devices) for node in state.nodes.values()}
    most = max(map(len, devices.values()), default=0)
    of_kind = ""
    if most == 0:
        return (
            f"gpus={request.gpus}, but this worker has no device: see its log. If another worker of its machine has "
            "them, end that one, and start this one anew. Else install the NVIDIA driver, or declare virtual devices "
            "with PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES=2"
        )
    if request.wants is not None:
        devices = {name: list(filter(request.wants.accepts, of_node)) for name, of_node in devices.items()}
        if not any(devices.values()):
            return why_unwanted(request.wants, [one for node in state.nodes.values() for one in node.devices])
        if request.needs_links:
            joined = max((len(group) for of_node in devices.values() for group in linked(of_node)), default=1)
            if joined < request.gpus:
                return (
                    f"nvlink=True with gpus={request.gpus} is more than any node has connected over NVLink "
                    f"({joined if joined > 1 else 'none'}): ask for {'fewer' if joined > 1 else 'gpus=1'}, or leave "
                    "nvlink out"
                )
        most, of_kind = max(map(len, devices.values())), " of the kind that it asks for"
    if request.spans and request.gpus > state.device_count:
        return f"gpus={request.gpus} is more than all nodes have together ({state.device_count}): ask for fewer"
    if request.gpus > most and not request.spans:
        return (
            f"gpus={request.gpus} is more than the {most}{of_kind} that a node of this worker has: ask for {most} or "
            "fewer"
        )
    # On each node, the devices of a gang can have at most what the smallest of its largest devices has.
    largest = max(
        (
            sorted((device.memory_bytes for device in of_node), reverse=True)[request.gpus - 1]
            for of_node in devices.values()
            if len(of_node) >= request.gpus
        ),
        default=0,
    )
    if (request.gpu_memory_bytes or 0) <= largest or request.spans:
        return (
            f"workers={request.workers} with gpus={request.gpus} each are more than fit into one domain of this "
            "cluster: ask for fewer"
        )
    each = f" on each of {request.gpus} devices of one node" if request.gpus > 1 else ""
    return (
        f"gpu_memory={(request.gpu_memory_bytes or 0) / 2**30:.6g}GiB{each} is more than this worker has: "
        f"ask for at most {gibibytes(largest)}"
    )


def gibibytes(size: int) -> str:
    """A size in GiB as a request may repeat it: rounded down, so that what is offered is really there."""
    return f"{int(size / 2**30 * 1000) / 1000:.15g}GiB" if size >= 2**30 else f"{size // 2**20}MiB"
