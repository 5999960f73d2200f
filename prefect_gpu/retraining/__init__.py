"""Keeping a model up to date: data that arrive, models as versions, and a test of whether the new one is better."""

from __future__ import annotations

from prefect_gpu.retraining.comparison import Comparison, check_limits, compare
from prefect_gpu.retraining.contest import Contest, contest
from prefect_gpu.retraining.data import DataFiles, Snapshot, announce
from prefect_gpu.retraining.mlflow_logging import MLflowRun, mlflow_run
from prefect_gpu.retraining.origin import flow_run_facts, origin
from prefect_gpu.retraining.page import history_page
from prefect_gpu.retraining.records import RegistryError
from prefect_gpu.retraining.registry import ModelRegistry
from prefect_gpu.retraining.versions import AlreadyRegistered, Decision, Superseded, Version

__all__ = [
    "AlreadyRegistered",
    "Comparison",
    "Contest",
    "DataFiles",
    "Decision",
    "MLflowRun",
    "ModelRegistry",
    "RegistryError",
    "Snapshot",
    "Superseded",
    "Version",
    "announce",
    "check_limits",
    "compare",
    "contest",
    "flow_run_facts",
    "history_page",
    "mlflow_run",
    "origin",
]
