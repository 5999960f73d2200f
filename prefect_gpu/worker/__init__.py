"""The Prefect plane: the work pool type ``gpu`` and its worker. Prefect finds it by the entry point in pyproject."""

from prefect_gpu.worker.worker import GpuWorker

__all__ = ["GpuWorker"]
