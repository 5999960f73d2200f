"""Our own plain layout: what a job asks for and how long it takes, in seconds, and whatever else is known.

The header is ``job_id,submit_s,duration_s,num_gpu``, and any of ``model``, ``batch_size``, ``iterations``,
``iteration_s``, ``stages_s`` (joined by semicolons), ``samples``, ``user``, ``queue``, ``priority``, ``deadline_s``,
``cpus`` and ``gpu_share``, in any order; a value left empty is unknown. See :class:`TraceJob` for what they mean. A job
that names its ``cpus`` may ask for 0 GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceJob
from prefect_gpu.simulation.traces.table import LARGEST, Row, read_table

NEUTRAL_COLUMNS = ("job_id", "submit_s", "duration_s", "num_gpu")


def read_neutral(path: Path) -> Iterator[TraceJob]:
    """The jobs of a file in the neutral layout, in its order. Times in the file are seconds. Raises TraceError."""
    for row in read_table(path, NEUTRAL_COLUMNS):
        yield TraceJob(
            job_id=row.name("job_id"),
            submit_s=row.number("submit_s"),
            duration_s=row.number("duration_s"),
            gpus=row.gpus("num_gpu", least=0 if row.get("cpus") else 1),
            model=row.get("model"),
            batch_size=_whole(row, "batch_size"),
            iterations=_whole(row, "iterations"),
            iteration_s=_number(row, "iteration_s"),
            stages_s=_stages(row),
            samples=_number(row, "samples"),
            user=row.get("user"),
            queue=row.get("queue"),
            priority=row.whole("priority", -LARGEST) if row.get("priority") else 0,
            deadline_s=_number(row, "deadline_s"),
            cpus=_number(row, "cpus"),
            gpu_share=_share(row),
        )


def _number(row: Row, column: str) -> float | None:
    return row.number(column) if row.get(column) else None


def _whole(row: Row, column: str) -> int | None:
    return row.whole(column) if row.get(column) else None


def _share(row: Row) -> float:
    share = _number(row, "gpu_share")
    if share is not None and share > 1:
        raise row.wrong("gpu_share", row.get("gpu_share"), "is more than a GPU", "give a number from 0 to 1.")
    return 1.0 if share is None else share


def _stages(row: Row) -> tuple[float, ...]:
    text = row.get("stages_s")
    try:
        stages = tuple(float(part) for part in text.split(";")) if text else ()
    except ValueError:
        stages = (math.nan,)
    if not all(0 <= stage < math.inf for stage in stages):
        raise row.wrong("stages_s", text, "is no list of times", "write seconds joined by semicolons, as 0.1;0.02.")
    return stages
