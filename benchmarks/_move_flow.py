"""The flows of the benchmark of moves: a real PyTorch training of a given size, and a run that keeps it company."""

from __future__ import annotations

import hashlib
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow

from prefect_gpu import training_run

WIDTH = 1024
BYTES_PER_LAYER = 2 * 4 * WIDTH * WIDTH  # weights and momentum, float32
_BATCH = 4


@flow
def fit(megabytes: int, steps: int, least_step_s: float, marks: str) -> str:
    """Trains ``megabytes`` (10^6 bytes) of state: a residual network of square layers, by SGD with momentum.

    Times are written down in Unix seconds, a line each. Returns the SHA-256 of all that was trained.
    """
    noted = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, **more: Any) -> None:
        line = {"what": what, "at": time.time(), "pid": os.getpid(), **more}
        os.write(noted, (json.dumps(line) + "\n").encode())

    note("first line", device=json.loads(os.environ["PREFECT_GPU_DEVICES"])[0]["id"])
    import torch

    with training_run(steps=steps) as run:
        torch.set_num_threads(1)  # the number of threads would change the last bits of sums
        torch.manual_seed(1)
        note("restores")
        kept = run.restore()
        note("is verified", found=kept is not None)
        # A model that is loaded all the same needs no first values.
        linear = torch.nn.Linear if kept is None else partial(torch.nn.utils.skip_init, torch.nn.Linear)
        layers = [linear(WIDTH, WIDTH, bias=False) for _ in range(round(megabytes * 1e6 / BYTES_PER_LAYER))]
        model = torch.nn.ModuleList(layers)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
        note("is built")
        if kept is not None:
            state = torch.load(kept, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        note("restored")

        def save(path: Path) -> None:
            note("saves")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            note("has written")

        for step in run.steps():
            begin = time.time()
            note("step", step=step)
            chance = torch.Generator().manual_seed(step)
            values = torch.randn(_BATCH, WIDTH, generator=chance)
            target = values.flip(1)
            optimizer.zero_grad()
            for layer in model:
                values = values + torch.tanh(layer(values)) / len(layers)
            loss = torch.nn.functional.mse_loss(values, target)
            loss.backward()
            optimizer.step()
            time.sleep(max(0.0, begin + least_step_s - time.time()))
            note("reports", step=step)
            run.report(loss=loss.item(), checkpoint=save)
            note("has reported", step=step)
    with run.saving():
        digest = hashlib.sha256()
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
            digest.update(optimizer.state[parameter]["momentum_buffer"].numpy().tobytes())
        note("result", digest=digest.hexdigest(), threads=torch.get_num_threads())
    return digest.hexdigest()


@flow
def company(marks: str, until: str) -> None:
    """Trains nothing, and stays until a file exists: it shares its device, and is never moved."""
    device = json.loads(os.environ["PREFECT_GPU_DEVICES"])[0]["id"]
    with training_run() as run:
        run.ready()
        Path(marks).write_text(device)
        while not Path(until).exists():
            time.sleep(0.02)
            run.report()
