"""The job traces of Gavel's physical cluster, and the throughputs that give their durations.

One job per line, ten values joined by tabs and no header: kind of job, command, folder, name of the option for the
steps, whether it needs data, steps, GPUs, weight, objective (negative: none), time of arrival in seconds. Durations
come from ``simulation_throughputs.json`` in a folder above the trace.

Public at github.com/stanford-futuredata/gavel (``scheduler/traces/physical_cluster``). Gavel's other traces, of seven
columns, ask for GPU counts that it has no throughputs for, and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from prefect_gpu.simulation.traces.document import number, read_object
from prefect_gpu.simulation.traces.job import TraceError, TraceJob
from prefect_gpu.simulation.traces.table import Row, text_lines

THROUGHPUTS = "simulation_throughputs.json"
GPU_KIND = "v100"
_COLUMNS = (
    "job_type", "command", "folder", "steps_option", "needs_data", "steps", "gpus", "weight", "objective", "arrival",
)  # fmt: skip
COLUMNS = len(_COLUMNS)
_BATCH = re.compile(r"^(?P<model>.*) \(batch size (?P<size>[0-9]{1,9})\)$")


def read_throughputs(path: Path, gpu_kind: str = GPU_KIND) -> dict[tuple[str, int], float]:
    """Steps per second of every kind of job alone on each count of one kind of GPU. Raises TraceError."""
    kind = read_object(path).get(gpu_kind)
    if not isinstance(kind, dict):
        raise TraceError(path, None, gpu_kind, None, "is no kind of GPU in the file", "name one that it holds.")
    found = {}
    for key, beside in kind.items():
        match = re.match(r"^\('(.*)', ([0-9]{1,7})\)$", key)
        if not match or not isinstance(beside, dict):
            raise TraceError(path, None, gpu_kind, key, "is no kind of job", "write it as ('A3C', 1).")
        found[match[1], int(match[2])] = number(path, f"{gpu_kind}.{key}.null", beside.get("null"))
    return found


def read_gavel(path: Path, throughputs: Mapping[tuple[str, int], float] | None = None) -> Iterator[TraceJob]:
    """The jobs of a trace in its order, named by their lines.

    Args:
        path: The trace.
        throughputs: Steps per second by kind of job and GPUs; None reads those of a V100 from the file above the trace.

    Raises:
        TraceError: The trace or the throughputs cannot be read, or a job is missing among them.
    """
    table = read_throughputs(_throughputs_of(path)) if throughputs is None else throughputs
    index = {name: place for place, name in enumerate(_COLUMNS)}
    for line, text in enumerate(text_lines(path), 1):
        if not text.strip():
            continue
        cells = text.rstrip("\r\n").split("\t")
        if len(cells) != COLUMNS:
            problem = f"has {len(cells)} values between tabs, and not {COLUMNS}"
            raise TraceError(path, line, "", text.strip(), problem, "is it a trace of Gavel's physical cluster?")
        row = Row(path, line, index, cells)
        kind, gpus, steps = row.text("job_type"), row.gpus("gpus"), row.whole("steps")
        steps_per_s = table.get((kind, gpus), 0.0)
        if not steps_per_s > 0:
            problem = f"has no throughput on {gpus} GPUs"
            raise row.wrong("job_type", kind, problem, f"add it to {THROUGHPUTS} or remove the job.")
        batch = _BATCH.match(kind)
        yield TraceJob(
            job_id=str(line),
            submit_s=row.number("arrival"),
            duration_s=steps / steps_per_s,
            gpus=gpus,
            model=batch["model"] if batch else kind,
            batch_size=int(batch["size"]) if batch else None,
            iterations=steps,
            iteration_s=1 / steps_per_s,
        )


def _throughputs_of(path: Path) -> Path:
    for folder in path.absolute().parents:
        if (folder / THROUGHPUTS).is_file():
            return folder / THROUGHPUTS
    raise TraceError(path, None, "", None, "has no throughputs near it", f"put {THROUGHPUTS} into a folder above it.")
