"""Writes jobs as each format has them, for tests that read them back."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable
from datetime import datetime, timedelta

from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.simulation.traces import ContentionTable, TraceJob

ISOLATED_CSV = ',isol_thp\n"MoE,2,2",10\n"MoE,4,2",16\n"MoE,4,4",20\n'
SHARED_CSV = ',"MoE,2,2","MoE,4,2"\n"MoE,2,2",0.5,0.6\n"MoE,4,2",0.7,0.8\n'
SAMPLES_CSV = "\ufeff,2,4\nMoE,36000,64800\n"
TABLE = ContentionTable(
    isolated={Key("MoE", 2, 2): 10.0, Key("MoE", 4, 2): 16.0, Key("MoE", 4, 4): 20.0},
    ratios={
        (Key("MoE", 2, 2), Key("MoE", 2, 2)): 0.5,
        (Key("MoE", 2, 2), Key("MoE", 4, 2)): 0.6,
        (Key("MoE", 4, 2), Key("MoE", 2, 2)): 0.7,
        (Key("MoE", 4, 2), Key("MoE", 4, 2)): 0.8,
    },
    samples={("MoE", 2): 36000.0, ("MoE", 4): 64800.0},
)
FIRST_TIMESTAMP = datetime(2017, 10, 9)


def _ms(field: str) -> Callable[[TraceJob], int]:
    """A field in thousandths."""
    return lambda job: round(getattr(job, field) * 1000)


def _stage_ms(index: int) -> Callable[[TraceJob], int]:
    return lambda job: round(job.stages_s[index] * 1000)


# The columns of a format: the name of a job's field, or what to make of the job.
Columns = dict[str, str | Callable[[TraceJob], object]]
_CORE: Columns = {
    "job_id": "job_id", "num_gpu": "gpus", "submit_time": "submit_s", "iterations": "iterations", "model_name": "model",
    "duration": "duration_s", "interval": lambda job: 0,
}  # fmt: skip
_NEUTRAL: Columns = {
    **{field.name: field.name for field in dataclasses.fields(TraceJob) if field.name != "gpus"},
    "num_gpu": "gpus",
    "stages_s": lambda job: ";".join(map(str, job.stages_s)),
}
COLUMNS: dict[str, Columns] = {
    "tiresias": _CORE,
    "muri": _CORE | {
        "submit_time": _ms("submit_s"), "batch_size": "batch_size", "duration": _ms("duration_s"),
        "iteration_time": _ms("iteration_s"), "resource_time_0": _stage_ms(0), "resource_time_1": _stage_ms(1),
        "resource_time_2": _stage_ms(2), "priority": lambda job: 1,
    },
    "neutral": _NEUTRAL,
    "elasticflow": {
        "job_id": "job_id", "submission_time": "submit_s", "num_iteration": "iterations", "model_name": "model",
        "deadline": "deadline_s", "batch_size": "batch_size", "num_gpu": "gpus", "duration": "duration_s",
    },
    "philly": {
        "timestamp": lambda job: FIRST_TIMESTAMP + timedelta(seconds=job.submit_s), "duration": "duration_s",
        "num_gpus": "gpus", "gpu_time": lambda job: job.gpus * job.duration_s, "cluster": "queue",
    },
    "chronus": _CORE | {
        "user": "user", "best_effort": lambda job: int(job.deadline_s is None),
        "expect_time_list": lambda job: 99 if job.deadline_s is None else round(job.deadline_s - job.submit_s),
    },
    "openb": {
        "name": "job_id", "cpu_milli": _ms("cpus"), "num_gpu": "gpus", "gpu_milli": _ms("gpu_share"), "qos": "queue",
        "creation_time": "submit_s", "deletion_time": lambda job: 7 + job.duration_s, "scheduled_time": lambda job: 7,
    },
}  # fmt: skip


def _table(format: str) -> Callable[[list[TraceJob]], str]:
    """A writer of the format's columns."""

    def write(jobs: list[TraceJob]) -> str:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS[format])
        for job in jobs:
            cells = [getattr(job, of) if isinstance(of, str) else of(job) for of in COLUMNS[format].values()]
            writer.writerow(["" if cell is None else cell for cell in cells])
        return text.getvalue()

    return write


def deepshare(jobs: list[TraceJob]) -> str:
    """Jobs of MoE on 2 or 4 GPUs, by their samples."""
    return json.dumps(
        {j.job_id: {"model": j.model, "gpu_demand": j.gpus, "total_samples_to_train": j.samples} for j in jobs}
    )


def gavel(jobs: list[TraceJob]) -> str:
    """Ten columns joined by tabs; jobs are named by their lines."""
    return "".join(
        f"{j.model} (batch size {j.batch_size})\tpython3 main.py\tfolder\t-n\t1\t{j.iterations}\t{j.gpus}\t1\t-1.0\t"
        f"{j.submit_s}\n"
        for j in jobs
    )


WRITERS: dict[str, Callable[[list[TraceJob]], str]] = {
    **{format: _table(format) for format in COLUMNS},
    "deepshare": deepshare,
    "gavel": gavel,
}
THROUGHPUTS_JSON = json.dumps({"v100": {f"('MoE (batch size {size})', 2)": {"null": size / 8} for size in (16, 32)}})
