"""The table of the real trainings: ``data/README.md`` says how it was made and what its columns are."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from prefect_gpu.estimation.runs import (
    CPU_CORES,
    LAUNCHING_S,
    MARKS,
    MEMORY_BYTES,
    SAVING_S,
    STEP_S,
    TRAINING_S,
    FinishedRun,
    Known,
)

DATA = Path(__file__).parent / "data" / "runs.csv"
PROGRESS = {percent: f"at_{percent}_percent_s" for percent in MARKS}
COLUMNS = (
    "run_id",
    "program",
    "parameters",
    "declared",
    "launching_s",
    "training_s",
    "saving_s",
    "steps",
    "rss_peak_bytes",
    "cpu_mean",
    "cpu_seconds",
    "others_cpu_s",
    "wall_s",
    "ended_at",
    "outcome",
    *PROGRESS.values(),
)


def read_runs(path: Path = DATA) -> list[FinishedRun]:
    """The trainings, in the order in which they ended."""
    return [_finished(row) for row in _rows(path)]


def read_progress(path: Path = DATA) -> dict[str, dict[int, float]]:
    """When each completed training had done 1, 2, 3, 5, ... 75 % of its steps (rounded up).

    Returns:
        By run id and percent, the seconds since its training began.
    """
    return {
        row["run_id"]: {percent: float(row[column]) for percent, column in PROGRESS.items()}
        for row in _rows(path)
        if row["outcome"] == "completed"
    }


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: float(row["ended_at"]))


def _finished(row: dict[str, str]) -> FinishedRun:
    columns = {
        LAUNCHING_S: "launching_s",
        TRAINING_S: "training_s",
        SAVING_S: "saving_s",
        MEMORY_BYTES: "rss_peak_bytes",
        CPU_CORES: "cpu_mean",
    }
    measured = {target: float(row[column]) for target, column in columns.items() if row[column]}
    steps = int(row["steps"]) if row["steps"] else None
    if steps and TRAINING_S in measured:
        measured[STEP_S] = measured[TRAINING_S] / steps
    return FinishedRun(
        run_id=row["run_id"],
        known=Known(
            program=row["program"],
            parameters=json.loads(row["parameters"]),
            declared=json.loads(row["declared"]),
            device_kind="virtual",
        ),
        measured=measured,
        completed=row["outcome"] == "completed",
        ended_at=float(row["ended_at"]),
        steps=steps,
        pace={percent: float(row[column]) for percent, column in PROGRESS.items() if row[column]},
    )
