"""A model search whose trainings run in the pool."""

from __future__ import annotations

from prefect_gpu.sweeps.sweep import SweepError, sweep
from prefect_gpu.training.rungs import asha

__all__ = ["SweepError", "asha", "sweep"]
