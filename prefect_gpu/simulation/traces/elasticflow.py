"""The traces of Microsoft's ITP clusters and those of ElasticFlow's experiments. Times are seconds.

Raw traces hold ``job_id,submission_time,duration,num_gpu``. The experiments' add models, iterations and deadlines, and
name some columns differently from file to file: ``submit_time``; ``num_iteration`` or ``iteration``; ``deadline`` or
``ddl``. Deadlines are times on the clock of the submissions.

Public at github.com/microsoft/elasticflow-traces and github.com/pkusys/ElasticFlow (``traces_for_ElasticFlow``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceJob
from prefect_gpu.simulation.traces.table import Row, header, read_table

ELASTICFLOW_COLUMNS = ("job_id", "duration", "num_gpu")
SUBMITTED = ("submission_time", "submit_time")


def read_elasticflow(path: Path) -> Iterator[TraceJob]:
    """The jobs of one cluster or experiment, in the file's order. Raises TraceError."""
    names = header(path)
    submitted = SUBMITTED[1] if SUBMITTED[1] in names else SUBMITTED[0]
    for row in read_table(path, (*ELASTICFLOW_COLUMNS, submitted)):
        iterations = _first(row, "num_iteration", "iteration")
        deadline = _first(row, "deadline", "ddl") if row.get("best_effort") in ("", "0") else ""
        yield TraceJob(
            job_id=row.name("job_id"),
            submit_s=row.number(submitted),
            duration_s=row.number("duration"),
            gpus=row.gpus("num_gpu"),
            model=row.get("model_name"),
            batch_size=row.whole("batch_size") if row.get("batch_size") else None,
            iterations=row.whole(iterations) if iterations else None,
            deadline_s=row.number(deadline) if deadline else None,
        )


def _first(row: Row, *names: str) -> str:
    """The first of the columns that holds anything; empty if none does."""
    return next((name for name in names if row.get(name)), "")
