"""The nodes of an allocation that are alike. Most allocations have one such part; a heterogeneous job has several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefect_gpu.scheduling.model.cluster import Device
from prefect_gpu.scheduling.model.jobs import Request


@dataclass(frozen=True)
class Part:
    """See the module.

    Attributes:
        nodes: How many there are.
        gres: As ``sbatch --gres`` takes it, for each node: ``gpu:a100:4``.
        cpus: Cores of each node.
        memory: As ``sbatch --mem`` takes it, for each node; empty: the partition's default.
        partition, constraint: As ``sbatch`` takes them; empty: its defaults.
        virtual_devices: Virtual devices of each node, on nodes without GPUs. They are not GPUs.
        virtual_device_memory_bytes: Memory of each of them.
        gpu_memory_bytes: Memory of each GPU, as far as it is known before there is a node; 0: unknown.
        gpu_kind: Product name of its GPUs, likewise; empty: unknown.
    """

    nodes: int = 1
    gres: str = ""
    cpus: int = 1
    memory: str = ""
    partition: str = ""
    constraint: str = ""
    virtual_devices: int = 0
    virtual_device_memory_bytes: int = 8 << 30
    gpu_memory_bytes: int = 0
    gpu_kind: str = ""

    @property
    def devices(self) -> int:
        """Devices of each node."""
        return self.virtual_devices or gpus_of(self.gres)

    @property
    def device_memory_bytes(self) -> int:
        """Memory of each device; 0: unknown."""
        return self.virtual_device_memory_bytes if self.virtual_devices else self.gpu_memory_bytes

    def instances(self, request: Request) -> int:
        """How many instances of a run its nodes can hold; 0: none."""
        memory = self.device_memory_bytes
        if (memory and (request.gpu_memory_bytes or 0) > memory) or not self._is_wanted(request):
            return 0
        by_cpus = self._by_cpus(request)
        by_devices = self.devices // request.gpus if request.gpus else by_cpus
        return self.nodes * min(by_cpus, by_devices)

    def servers(self, request: Request) -> int:
        """How many parameter servers of a run its nodes can hold, if they can hold nothing else of it."""
        return 0 if self.devices or not request.gpus else self.nodes * self._by_cpus(request)

    def _by_cpus(self, request: Request) -> int:
        return self.cpus // request.cpus if request.cpus else self.cpus

    def _is_wanted(self, request: Request) -> bool:
        """Whether its kind of GPU, as far as it is known, is one that the run wants."""
        if request.wants is None or not self.gpu_kind:
            return True
        return replace(request.wants, capability=()).accepts(Device("", self.gpu_kind, 0))

    def options(self) -> Sequence[str]:
        """Options of ``sbatch`` that say this."""
        stated = {
            "partition": self.partition,
            "constraint": self.constraint,
            "gres": self.gres,
            "mem": self.memory,
        }
        return (
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={self.cpus}",
            *(f"--{option}={value}" for option, value in stated.items() if value),
        )


def gpus_of(gres: str) -> int:
    """How many GPUs a ``--gres`` asks for on each node.

    Example:
        >>> gpus_of("gpu:a100:4"), gpus_of("gpu:2"), gpus_of("gpu"), gpus_of("gpu:a100"), gpus_of("nic:1")
        (4, 2, 1, 1, 0)
    """
    count = 0
    for part in gres.split(","):
        words = part.partition("(")[0].split(":")
        if words[0].rpartition("/")[2] == "gpu":
            count += int(words[-1]) if words[-1].isdigit() else 1
    return count
