"""DeepShare's job sets, and its measured tables of how much jobs slow each other down.

A job set is a JSON object: ``{"0": {"model": "MoE", "gpu_demand": 2, "total_samples_to_train": 44248.267}, ...}``, all
submitted at 0. The tables lie in a folder ``jobs`` above the job sets. Their keys are a job's model, its GPUs, and the
nodes that it is spread over evenly.

Public at github.com/gajagajago/deepshare (``scheduler/jobs``, ``scheduler/traces``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect_gpu.scheduling.interference.sensitivity import Key
from prefect_gpu.simulation.traces.document import number, read_object
from prefect_gpu.simulation.traces.job import TraceError, TraceJob
from prefect_gpu.simulation.traces.table import MOST_GPUS, Row, header, read_table

ISOLATED, SHARED, SAMPLES = "isolated_thp.csv", "shared_thp_ratio.csv", "total_samples_trained.csv"
_KEY_REMEDY = 'write it as "MoE,4,2": model, GPUs, nodes.'


@dataclass(frozen=True, slots=True)
class ContentionTable:
    """What was measured of jobs alone and beside each other.

    Attributes:
        isolated: Samples per second of a job alone on its nodes.
        ratios: Part of that speed left to the first job of a pair while the second one uses a node of its.
        samples: Samples that a job of a model and GPU count trains on, as the job sets were made.
    """

    isolated: Mapping[Key, float]
    ratios: Mapping[tuple[Key, Key], float]
    samples: Mapping[tuple[str, int], float]

    def fewest_nodes(self, model: str, gpus: int) -> Key | None:
        """The most consolidated spread that was measured for such a job; None if there is none."""
        spreads = [spread for spread in self.isolated if spread[:2] == (model, gpus)]
        return min(spreads, key=lambda spread: spread.nodes, default=None)


def read_contention(folder: Path) -> ContentionTable:
    """The three tables in a folder. Raises TraceError for a bad one, OSError for a missing one."""
    isolated = {_spread(row): _positive(row, "isol_thp") for row in read_table(folder / ISOLATED, ("", "isol_thp"))}
    ratios: dict[tuple[Key, Key], float] = {}
    others = [name for name in header(folder / SHARED) if name]
    for row in read_table(folder / SHARED, ("",)):
        own = _spread(row)
        if own not in isolated:
            raise row.wrong("", row.get(""), f"is missing in {ISOLATED}", "measure it alone too.")
        for other in others:
            ratios[own, _spread(row, other)] = _positive(row, other)
    columns = [name for name in header(folder / SAMPLES) if name]
    samples = {}
    for row in read_table(folder / SAMPLES, ("",)):
        for gpus in columns:
            if not (gpus.isascii() and gpus.isdigit() and len(gpus) < 8):
                raise TraceError(row.path, 1, gpus, None, "is no count of GPUs", "name the columns 2, 4, 8.")
            samples[row.text(""), int(gpus)] = _positive(row, gpus)
    return ContentionTable(isolated, ratios, samples)


def read_deepshare(path: Path, table: ContentionTable | None = None) -> Iterator[TraceJob]:
    """The jobs of a set, in the file's order, all submitted at 0.

    A job's duration is that of its samples at its speed alone on the fewest nodes that the table has for it.

    Args:
        path: The job set.
        table: Throughputs; None reads them from the folder ``jobs`` beside one of the folders that hold the job set.

    Raises:
        TraceError: The job set or the table cannot be read, or a job is missing in the table.
    """
    jobs = read_object(path)
    table = read_contention(_tables_of(path)) if table is None else table
    for job_id, job in jobs.items():
        if not isinstance(job, dict) or not job_id:
            raise TraceError(
                path, None, job_id, job, "describes no job", "give it a name, and an object with its fields."
            )
        model = job.get("model")
        if not isinstance(model, str):
            raise TraceError(path, None, f"{job_id}.model", model, "is no name", "name the model that it trains.")
        gpus = number(path, f"{job_id}.gpu_demand", job.get("gpu_demand"), least=1)
        if gpus != int(gpus) or gpus > MOST_GPUS:
            raise TraceError(path, None, f"{job_id}.gpu_demand", gpus, "is no count of GPUs", "give a whole number.")
        samples = number(path, f"{job_id}.total_samples_to_train", job.get("total_samples_to_train"))
        spread = table.fewest_nodes(model, int(gpus))
        if spread is None:
            what = f"{model} on {int(gpus)} GPUs"
            raise TraceError(path, None, job_id, what, f"is missing in {ISOLATED}", "measure it, or drop the job.")
        yield TraceJob(job_id, 0.0, samples / table.isolated[spread], int(gpus), model, samples=samples)


def _tables_of(path: Path) -> Path:
    for folder in path.absolute().parents:
        if (folder / "jobs" / ISOLATED).is_file():
            return folder / "jobs"
    remedy = f"put {ISOLATED} and its like into a folder jobs beside the job sets."
    raise TraceError(path, None, "", None, "has no tables of throughput near it", remedy)


def _spread(row: Row, text: str | None = None) -> Key:
    """The key in the row's first column, or a key that stands in the header."""
    text = row.text("") if text is None else text
    model, _, rest = text.strip().partition(",")
    counts = rest.split(",")
    if not model or len(counts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 8 for part in counts):
        raise row.wrong("", text, "is no key of the table", _KEY_REMEDY)
    return Key(model, int(counts[0]), int(counts[1]))


def _positive(row: Row, column: str) -> float:
    value = row.number(column)
    if value == 0:
        raise row.wrong(column, row.get(column), "is zero", "give the measured value.")
    return value
