"""Flows of the benchmark of waiting: one that holds its device, and a short training."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow
def hold(folder: str) -> None:
    """Holds its device until it is told to go. It notes when its process began, and when its first line was reached."""
    from prefect.runtime import flow_run

    noted = {"run": str(flow_run.id), "process": _began(), "line": time.time()}
    file = Path(folder, f"began-{flow_run.id}")
    file.with_suffix(".tmp").write_text(json.dumps(noted))
    file.with_suffix(".tmp").replace(file)
    while not (Path(folder, f"go-{flow_run.id}").exists() or Path(folder, "go").exists()):
        time.sleep(0.02)


def _began() -> float:
    """When this process was made, in Unix seconds, to a hundredth: psutil knows it to a second only."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


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
