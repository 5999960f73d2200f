"""How a container gets its GPUs: with NVIDIA's container toolkit, in the two ways in which Engines have it.

Where an Engine knows a runtime named ``nvidia``, that reads from the container's environment which GPUs are wanted.
Where it knows none, it may have the toolkit's hook, for which the GPUs are requested as devices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from docker.types import DeviceRequest

RUNTIME = "nvidia"
VISIBLE, CAPABILITIES = "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"
_NONE = "void"  # to the toolkit: as if it were not there
_NEEDED = ("compute", "utility")  # CUDA; NVML, by which a run's use of its GPUs is measured


@dataclass(frozen=True)
class GpuAccess:
    """What gives a container its GPUs, and no others.

    Attributes:
        environment: What the container's environment must say; what is in it may say nothing else.
        runtime: The OCI runtime, or None for the Engine's default.
        requests: Devices, where they have to be requested.
    """

    environment: Mapping[str, str]
    runtime: str | None = None
    requests: tuple[DeviceRequest, ...] = ()


def gpu_access(gpus: Sequence[str], runtimes: Collection[str], environment: Mapping[str, str]) -> GpuAccess:
    """How a container gets these GPUs.

    Args:
        gpus: UUIDs of GPUs and MIG instances; empty: it must see none, whatever its image says.
        runtimes: Names of the OCI runtimes that the Engine knows.
        environment: What image and job declare. What they say of the driver's capabilities is kept and completed.

    Example:
        >>> gpu_access(["GPU-1"], ["runc", "nvidia"], {}).environment
        {'NVIDIA_VISIBLE_DEVICES': 'GPU-1', 'NVIDIA_DRIVER_CAPABILITIES': 'compute,utility'}
    """
    if not gpus:
        return GpuAccess({VISIBLE: _NONE})
    declared = [word for word in environment.get(CAPABILITIES, "").split(",") if word]
    capabilities = declared if "all" in declared else [*declared, *(one for one in _NEEDED if one not in declared)]
    wanted = {VISIBLE: ",".join(gpus), CAPABILITIES: ",".join(capabilities)}
    if RUNTIME in runtimes:
        return GpuAccess(wanted, RUNTIME)
    return GpuAccess(wanted, requests=(DeviceRequest(driver="nvidia", device_ids=list(gpus), capabilities=[["gpu"]]),))
