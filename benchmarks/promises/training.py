"""A short training that saves and carries on, for the live part of the benchmark."""

from __future__ import annotations

import json
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run

STEP_S = 0.1


@flow
def train(steps: int) -> None:
    """Trains for so many steps, each of a tenth of a second."""
    with training_run(steps=steps, checkpoint_every=1.0) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"step": run.step}))

        for step in run.steps():
            time.sleep(STEP_S)
            run.report(loss=1.0 / (step + 1), checkpoint=save)
