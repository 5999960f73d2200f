"""The layout of Tiresias' simulator, and Muri's extension of it.

Both have the columns ``job_id,num_gpu,submit_time,iterations,model_name,duration,interval``. Tiresias writes
**seconds**; Muri adds ``batch_size``, ``iteration_time``, ``resource_time_0..2`` and ``priority``, and writes
**milliseconds**.

Public at github.com/Rivendile/Muri (``simulator/trace-data``) and github.com/SymbioticLab/Tiresias (``simulator``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceJob
from prefect_gpu.simulation.traces.table import Row, read_table

TIRESIAS_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration")
MURI_COLUMNS = (*TIRESIAS_COLUMNS, "batch_size", "iteration_time")
_STAGES = ("resource_time_0", "resource_time_1", "resource_time_2")
_SAME_UNIT = 10.0  # times that two ways of writing one duration may differ by before their units must differ


def read_tiresias(path: Path) -> Iterator[TraceJob]:
    """The jobs of a file in Tiresias' layout, in its order. Times in the file are seconds. Raises TraceError."""
    for row in read_table(path, TIRESIAS_COLUMNS):
        yield TraceJob(
            job_id=row.name("job_id"),
            submit_s=row.number("submit_time"),
            duration_s=row.number("duration"),
            gpus=row.gpus("num_gpu"),
            model=row.get("model_name"),
            iterations=row.whole("iterations"),
        )


def read_muri(path: Path) -> Iterator[TraceJob]:
    """The jobs of a file in Muri's layout, in its order. Times in the file are milliseconds. Raises TraceError.

    The duration is ``iterations × iteration_time``, which is what Muri's simulator serves; the column ``duration`` is
    what the job took in the original trace, up to one iteration more, and is only checked against it.

    The column ``priority`` is passed over: it is 0 or 1 by chance, and the published results come out to the digit
    without it. A policy that heeds priorities would be measured by another trace than those that do not.
    """
    for row in read_table(path, MURI_COLUMNS):
        iterations = row.whole("iterations")
        iteration_ms = row.number("iteration_time")
        _check_units(row, row.number("duration"), iterations, iteration_ms)
        stages = [row.number(name) / 1000 for name in _STAGES if row.get(name)]
        yield TraceJob(
            job_id=row.name("job_id"),
            submit_s=row.number("submit_time") / 1000,
            duration_s=iterations * iteration_ms / 1000,
            gpus=row.gpus("num_gpu"),
            model=row.get("model_name"),
            batch_size=row.whole("batch_size") if row.get("batch_size") else None,
            iterations=iterations,
            iteration_s=iteration_ms / 1000,
            stages_s=tuple(stages),
        )


def _check_units(row: Row, duration_ms: float, iterations: int, iteration_ms: float) -> None:
    """Refuse a row whose duration cannot be in the unit of its iteration time: it would be simulated 1000 times off."""
    short, long = sorted((duration_ms, iterations * iteration_ms))
    if long - short > iteration_ms and long > _SAME_UNIT * short:
        problem = f"is far from iterations × iteration_time = {iterations * iteration_ms:g}"
        raise row.wrong("duration", row.get("duration"), problem, "write all times of the file in milliseconds.")
