"""Workloads as Pollux' authors wrote them: when which model is submitted, and what a user would ask for it."""

from __future__ import annotations

import csv
from pathlib import Path

from prefect_gpu.simulation.traces import TraceJob

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read_workload(path: Path) -> list[TraceJob]:
    """The jobs of a workload, in its order. Their durations are 0: they follow from the tables and the policy.

    Raises:
        ValueError: A column is missing.
    """
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        lacking = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
        if lacking:
            raise ValueError(f"{path} has no column {lacking[0]!r}: name a workload of Pollux' simulator")
        return [
            TraceJob(
                row["name"],
                float(row["time"]),
                0.0,
                int(row["num_replicas"]),
                model=row["application"],
                batch_size=int(row["batch_size"]),
            )
            for row in rows
        ]
