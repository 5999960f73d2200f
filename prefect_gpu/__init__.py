"""prefect-gpu: a Prefect work pool that gives training runs their GPUs, starts them warm and follows them.

The names below are loaded when they are first used, so that importing the package inside a training
process costs nothing but what that process needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_gpu.blocks import CheckpointStorage, GpuCluster, GpuQuota, GpuSlurm
    from prefect_gpu.decorators import gpu
    from prefect_gpu.sweeps import asha, sweep
    from prefect_gpu.training import training_run
    from prefect_gpu.watching import watch
    from prefect_gpu.worker import GpuWorker

    __version__: str

__all__ = [
    "CheckpointStorage",
    "GpuCluster",
    "GpuQuota",
    "GpuSlurm",
    "GpuWorker",
    "__version__",
    "asha",
    "gpu",
    "sweep",
    "training_run",
    "watch",
]

_HOMES = {
    "CheckpointStorage": "prefect_gpu.blocks",
    "GpuCluster": "prefect_gpu.blocks",
    "GpuQuota": "prefect_gpu.blocks",
    "GpuSlurm": "prefect_gpu.blocks",
    "GpuWorker": "prefect_gpu.worker",
    "asha": "prefect_gpu.sweeps",
    "gpu": "prefect_gpu.decorators",
    "sweep": "prefect_gpu.sweeps",
    "training_run": "prefect_gpu.training",
    "watch": "prefect_gpu.watching",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":  # as it was installed: the version comes from the tags of the repository
        return import_module("importlib.metadata").version("prefect-gpu")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also what is loaded when it is first used: ``prefect block register -m prefect_gpu`` finds the blocks by it.

    But not ``sweep``, which cannot be loaded where its extra is not installed.
    """
    return sorted({*globals(), *__all__} - {"sweep"})
