"""Workloads as Pollux' authors wrote them: when which model is submitted, and what a user would ask for it."""

from __future__ import annotations

from pathlib import Path

from prefect_gpu.simulation.traces import TraceJob
from prefect_gpu.simulation.traces.table import read_table

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def read_workload(path: Path) -> list[TraceJob]:
    """The jobs of a workload, in its order. Their durations are 0: they follow from the tables and the policy.

    Raises:
        TraceError: It is no such workload, or a row cannot be read.
    """
    return [
        TraceJob(
            row.name("name"),
            row.number("time"),
            0.0,
            row.gpus("num_replicas"),
            model=row.text("application"),
            batch_size=row.whole("batch_size", least=1),
        )
        for row in read_table(path, COLUMNS)
    ]
