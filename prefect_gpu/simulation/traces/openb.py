"""The pods of Alibaba's GPU cluster of 2023 (openb), many of which ask for a part of a GPU. Times are seconds.

``name,cpu_milli,memory_mib,num_gpu,gpu_milli,...,creation_time,deletion_time,scheduled_time``; public at
github.com/alibaba/clusterdata (cluster-trace-gpu-v2023) and github.com/hkust-adsl/kubernetes-scheduler-simulator
(``data/csv``). Pods that still ran when the trace was taken end at its end. Files without the times hold no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prefect_gpu.simulation.traces.job import TraceJob
from prefect_gpu.simulation.traces.table import read_table

OPENB_COLUMNS = ("name", "cpu_milli", "num_gpu", "gpu_milli", "creation_time", "deletion_time", "scheduled_time")
_WHOLE_MILLI = 1000


def read_openb(path: Path) -> Iterator[TraceJob]:
    """The pods that were ever scheduled, in the file's order; the class of service is the queue. Raises TraceError.

    A pod lasts from its scheduling to its deletion. One that was never scheduled says nothing about how long it would
    have taken, and is left out.
    """
    for row in read_table(path, OPENB_COLUMNS):
        if not row.get("scheduled_time"):
            continue
        started_s, ended_s = row.number("scheduled_time"), row.number("deletion_time")
        if ended_s < started_s:
            problem = f"is before scheduled_time={started_s:g}"
            raise row.wrong("deletion_time", row.get("deletion_time"), problem, "mend the times or remove the row.")
        gpus = row.gpus("num_gpu", least=0)
        yield TraceJob(
            job_id=row.name("name"),
            submit_s=row.number("creation_time"),
            duration_s=ended_s - started_s,
            gpus=gpus,
            queue=row.get("qos"),
            cpus=row.number("cpu_milli") / 1000,
            gpu_share=row.whole("gpu_milli", most=_WHOLE_MILLI) / _WHOLE_MILLI if gpus else 1.0,
        )
