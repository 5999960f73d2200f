"""The flow of the benchmark of Suspend: a real training in NumPy, whose state has a given size."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run

_LAYERS, _BATCH = 4, 8


@flow
def fit(megabytes: int, steps: int, least_step_s: float, marks: str) -> str:
    """Trains ``megabytes`` (10^6 bytes) of weights and momentum: a network of square layers, by SGD with momentum.

    Times are written down in Unix seconds, a line each. Returns the SHA-256 of all that was trained.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    noted = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, **more: object) -> None:
        line = {"what": what, "at": time.time(), "pid": os.getpid(), **more}
        os.write(noted, (json.dumps(line) + "\n").encode())

    width = int((megabytes * 1e6 / (2 * 4 * _LAYERS)) ** 0.5)
    with training_run(steps=steps) as run:
        kept = run.restore()
        if kept is None:
            chance = np.random.default_rng(1)
            weights = (chance.standard_normal((_LAYERS, width, width)) / width**0.5).astype(np.float32)
            momentum = np.zeros_like(weights)
        else:
            weights, momentum = (one.copy() for one in np.load(kept))
        note("begins", restored=kept is not None)

        def save(path: Path) -> None:
            note("saves")
            with path.open("wb") as file:  # np.save would give a path its own suffix
                np.save(file, np.stack([weights, momentum]))

        for step in run.steps():
            begin = time.time()
            # The pool may give it another core, and more threads would change the last bits of sums.
            threadpool_limits(1)
            inputs = np.random.default_rng(step).standard_normal((_BATCH, width)).astype(np.float32)
            hidden = [inputs]
            for layer in weights:
                hidden.append(np.tanh(hidden[-1] @ layer))
            error = hidden[-1] - inputs[:, ::-1]
            gradient = error / error.size
            for number in reversed(range(_LAYERS)):
                gradient = gradient * (1.0 - hidden[number + 1] ** 2)
                change = hidden[number].T @ gradient
                gradient = gradient @ weights[number].T
                momentum[number] = 0.9 * momentum[number] + change
                weights[number] -= 0.01 * momentum[number]
            time.sleep(max(0.0, begin + least_step_s - time.time()))
            note("reports", step=step)
            run.report(loss=float((error**2).mean()), checkpoint=save)
            note("has reported", step=step)
    with run.saving():
        digest = hashlib.sha256(weights.tobytes() + momentum.tobytes()).hexdigest()
        note("result", digest=digest)
    return digest
