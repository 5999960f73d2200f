"""Keeping a model up to date: data that arrive, models as versions, and a test of whether the new one is better."""

from __future__ import annotations

from prefect_gpu.retraining.comparison import Comparison, compare
from prefect_gpu.retraining.data import DataFiles, Snapshot, announce
from prefect_gpu.retraining.mlflow_run import MLflowRun, mlflow_run
from prefect_gpu.retraining.origin import origin
from prefect_gpu.retraining.records import RegistryError
from prefect_gpu.retraining.registry import AlreadyRegistered, Decision, ModelRegistry, Superseded, Version

__all__ = [
    "AlreadyRegistered",
    "Comparison",
    "DataFiles",
    "Decision",
    "MLflowRun",
    "ModelRegistry",
    "RegistryError",
    "Snapshot",
    "Superseded",
    "Version",
    "announce",
    "compare",
    "mlflow_run",
    "origin",
]
