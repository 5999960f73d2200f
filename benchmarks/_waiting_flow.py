"""Flows of the benchmark of waiting: one that holds its device, and a short training."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
from prefect import flow

from prefect_gpu import training_run


@flow
def hold(folder: str) -> None:
    """Holds its device until it is told to go. It notes when its process began, and when its first line was reached."""
    from prefect.runtime import flow_run

    noted = {"run": str(flow_run.id), "process": psutil.Process().create_time(), "line": time.time()}
    file = Path(folder, f"began-{flow_run.id}")
    file.with_suffix(".tmp").write_text(json.dumps(noted))
    file.with_suffix(".tmp").replace(file)
    while not (Path(folder, f"go-{flow_run.id}").exists() or Path(folder, "go").exists()):
        time.sleep(0.02)


@flow
def train(steps: int = 40) -> None:
    """Trains for some seconds."""
    with training_run(steps=steps) as run:
        run.ready()
        for step in run.steps():
            time.sleep(0.1)
            run.report(loss=1.0 / (1 + step))
    with run.saving():
        time.sleep(0.5)
