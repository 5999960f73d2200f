"""What a run's process does: calls one program, and notes when each step was finished.

    python -m benchmarks.estimation.programs.execute JOB

The job is JSON: ``{"module", "program", "parameters", "notes"}``; the notes are the seconds from the beginning of the
training to the end of each step, written when the program is over.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from prefect_gpu.training import TrainingRun


def note_steps() -> list[float]:
    """From now on, note when each step of this process's training ends; the first note is the beginning."""
    notes: list[float] = []
    steps = TrainingRun.steps

    def noted(run: TrainingRun) -> Iterator[int]:
        run.ready()
        notes.append(monotonic())
        for step in steps(run):
            yield step
            notes.append(monotonic())

    TrainingRun.steps = noted  # type: ignore[method-assign, assignment]
    return notes


def main() -> None:
    """Run the program that the job names."""
    job = json.loads(sys.argv[1])
    notes = note_steps()
    if job["module"] in ("networks", "sequences"):
        import torch

        torch.set_num_threads(1)
    module = importlib.import_module(f"benchmarks.estimation.programs.{job['module']}")
    getattr(module, job["program"])(**job["parameters"])
    Path(job["notes"]).write_text(json.dumps([round(note - notes[0], 6) for note in notes[1:]]))


if __name__ == "__main__":
    main()
