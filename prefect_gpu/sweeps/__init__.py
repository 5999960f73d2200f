"""A model search whose trainings run in the pool."""

from __future__ import annotations

from prefect_gpu.training.rungs import asha

try:
    from prefect_gpu.sweeps.alone import SweepError
    from prefect_gpu.sweeps.sweep import sweep
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "prefect_gpu":
        raise
    raise ModuleNotFoundError(
        f"A sweep needs {error.name}, which is not installed: pip install 'prefect-gpu[flows]'", name=error.name
    ) from error

__all__ = ["SweepError", "asha", "sweep"]
