"""A model search whose trainings run in the pool."""

from __future__ import annotations

from prefect_gpu.sweeps.sweep import SweepError, sweep

__all__ = ["SweepError", "sweep"]
