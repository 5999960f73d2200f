"""Traces derived from Microsoft's Philly cluster (github.com/msr-fiddle/philly-traces).

``philly``: ``timestamp,duration,num_gpus,gpu_time,cluster``, as Pollux prepared it; public in
github.com/pkusys/ElasticFlow (``pollux/pollux_simulator/traces``). Jobs have no names there and stand in no order of
time.

``chronus``: ``job_id,user,num_gpu,submit_time,iterations,model_name,duration,...,expect_time_list,...``, with the
deadlines of Chronus' experiments; public at github.com/S-Lab-System-Group/ChronusArtifact (``code/data/exp``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceJob
from prefect_gpu.simulation.traces.table import Row, read_table

PHILLY_COLUMNS = ("timestamp", "duration", "num_gpus")
CHRONUS_COLUMNS = ("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "expect_time_list")


def read_philly(path: Path) -> Iterator[TraceJob]:
    """The jobs of a Philly file in its order, named by their lines; the virtual cluster is the queue.

    Submissions count from the earliest one, so the file is read twice. Raises TraceError.
    """
    first_s = min((_timestamp_s(row) for row in read_table(path, PHILLY_COLUMNS)), default=0.0)
    for row in read_table(path, PHILLY_COLUMNS):
        yield TraceJob(
            job_id=str(row.line),
            submit_s=_timestamp_s(row) - first_s,
            duration_s=row.number("duration"),
            gpus=row.gpus("num_gpus"),
            queue=row.get("cluster"),
        )


def read_chronus(path: Path) -> Iterator[TraceJob]:
    """The jobs of a Chronus experiment in the file's order; some ask for no GPU. Times are seconds. Raises TraceError.

    A deadline in the file counts from the submission. Of a soft deadline's steps the first counts, by which the job is
    worth all that it can be; a best-effort job has none.
    """
    for row in read_table(path, CHRONUS_COLUMNS):
        submit_s = row.number("submit_time")
        yield TraceJob(
            job_id=row.name("job_id"),
            submit_s=submit_s,
            duration_s=row.number("duration"),
            gpus=row.gpus("num_gpu", least=0),
            model=row.get("model_name"),
            iterations=row.whole("iterations"),
            user=row.get("user"),
            deadline_s=None if row.get("best_effort") == "1" else submit_s + _first_step_s(row),
        )


def _timestamp_s(row: Row) -> float:
    text = row.text("timestamp")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise row.wrong("timestamp", text, "is no date and time", "write it as 2017-10-09 07:01:55.") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()


def _first_step_s(row: Row) -> float:
    text = row.text("expect_time_list")
    first = text.split("-", 1)[0]
    if not (first.isascii() and first.replace(".", "", 1).isdigit()) or len(first) > 20:
        raise row.wrong("expect_time_list", text, "is no list of seconds", "write them as 159 or 159-189-229.")
    return float(first)
