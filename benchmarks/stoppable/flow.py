"""The flow of the benchmark of stoppable runs: a small real training whose steps last as long as a device's would."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow
def fit(steps: int, seed: int, step_s: float, notes: str) -> str:
    """Trains a network by SGD, and offers its checkpoint after each step. What is left of a step's time it sleeps.

    Each step is noted as a line: its number and the process. Returns the SHA-256 of all that was trained.
    """
    from benchmarks._elastic_training import Network

    noted = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with training_run(steps=steps) as run:
        network = Network(seed)
        run.restore(network.load)
        for number in run.steps():
            begin = time.monotonic()
            loss = network.step(number)
            time.sleep(max(0.0, begin + step_s - time.monotonic()))
            os.write(noted, (json.dumps([number, os.getpid()]) + "\n").encode())
            run.report(loss=loss, checkpoint=network.save)
    with run.saving():
        Path(f"{notes}.result").write_text(network.digest())
    return network.digest()
