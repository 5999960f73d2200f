"""The training of the benchmark of faults: it does little, saves often, and notes what it does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow(retries=100, retry_delay_seconds=0)
def fit(name: str, folder: str, steps: int, step_s: float) -> None:
    """Each step changes a number; what comes out depends on their order and count."""
    notes = os.open(f"{folder}/{name}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(notes, b"started\n")
    with training_run(steps=steps, checkpoint_every=5.0) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        for step in run.steps():
            weight = result_after(weight, step)
            time.sleep(step_s)
            run.report(loss=weight, checkpoint=save)
    with run.saving():
        os.write(notes, f"finished {weight!r}\n".encode())


def result_after(weight: float, step: int) -> float:
    """One step."""
    return weight - 0.1 * weight * (1 + step % 3)
