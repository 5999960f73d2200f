"""Flows of the benchmark of waiting: one that holds its device, and a short training."""

from __future__ import annotations

import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow
def hold(folder: str) -> None:
    """Holds its device until it is told to go."""
    from prefect.runtime import flow_run

    began = Path(folder, f"began-{flow_run.id}")
    began.write_text(repr(time.time()))
    go = Path(folder, f"go-{flow_run.id}")
    while not (go.exists() or Path(folder, "go").exists()):
        time.sleep(0.02)
    Path(folder, f"ended-{flow_run.id}").write_text(repr(time.time()))


@flow
def train(steps: int = 40) -> None:
    """Trains for some seconds."""
    with training_run(steps=steps) as run:
        run.ready()
        for step in run.steps():
            time.sleep(0.1)
            run.report(loss=1.0 / (1 + step))
    with run.saving():
        time.sleep(0.3)
