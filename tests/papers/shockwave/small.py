"""Jobs and tables in the form of Shockwave's, with numbers that can be checked by hand.

"Transformer" of 100 samples a step does 1 step/s, 100 of which are an epoch. "ResNet-18" of 50 samples a step does
10 steps/s on one GPU and 100 on two; of 100 samples, 8 and 90; of 256, 5 and 50.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

SPEEDS = [
    *(("Transformer", 100, gpus, 1.0) for gpus in (1, 2, 4)),
    ("ResNet-18", 50, 1, 10.0),
    ("ResNet-18", 50, 2, 100.0),
    ("ResNet-18", 100, 1, 8.0),
    ("ResNet-18", 100, 2, 90.0),
    ("ResNet-18", 256, 1, 5.0),
    ("ResNet-18", 256, 2, 50.0),
]

Row = tuple[float, str, int, int, int, str]
"""Submitted at (s), model, batch size, steps, GPUs, mode."""


def plain(at: float, steps: int, gpus: int = 1) -> Row:
    """A job of so many seconds."""
    return (at, "Transformer", 100, steps, gpus, "static")


def write_trace(path: Path, *rows: Row) -> Path:
    """A trace of these jobs."""
    lines = [
        f"{model} (batch size {batch})\tcommand\tfolder\t--steps\t1\t{steps}\t{gpus}\t{mode}\t1\t-1\t0\t{at}"
        for at, model, batch, steps, gpus, mode in rows
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_tables(
    folder: Path, exclusive_s: Sequence[float], runs: Sequence[tuple[int, int]] = ((1, 50), (9, 100))
) -> Path:
    """The tables of jobs that take so long alone; one schedule was published, in which job 0 runs four rounds long."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("model", "batch_size", "gpus", "steps_per_s")
    _write(folder / "v100_throughputs.json", [dict(zip(names, row, strict=True)) for row in SPEEDS])
    _write(
        folder / "batch_size_patterns.json",
        [
            {"job": number, "batch_size_by_epoch_as_runs": runs, "exclusive_s": seconds}
            for number, seconds in enumerate(exclusive_s)
        ],
    )
    _write(folder / "published.json", {"Ours": {"schedule_by_round": [[0]] * 4}, "Unknown": {}})
    return folder


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
