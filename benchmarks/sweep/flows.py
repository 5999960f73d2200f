"""The trainings of the sweep: the same file for every contender. Without our pool, ``training_run`` does nothing.

Core 0 is the device: a process is bound to it for its steps alone. Core 1 does the rest (Prefect, importing, loading,
saving), as the host's processor does beside a GPU. Each run writes down when it did what, on the clock that all
processes of a machine share.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow

from prefect_gpu.training import training_run
from prefect_gpu.training.limits.cpus import bind

DEVICE_CORE, HOST_CORE = 0, 1
ENV_FOLDER, ENV_DATA = "SWEEP_FOLDER", "SWEEP_DATA"  # where the runs write, and the table that they read
_WEIGHTS_BYTES = 96 << 20
_BATCH = 256


@flow
def train_torch(name: str, seed: int, steps: int, width: int, batches: int = 64) -> float:
    """A small network on a table; one step is so many batches."""
    began = time.monotonic()
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)

    def build(x: Any, y: Any) -> tuple[Callable[[int], float], Callable[[], bytes], Callable[[], Any]]:
        torch.set_num_threads(1)
        inputs, labels = torch.tensor(x), torch.tensor(y, dtype=torch.float32)
        model = torch.nn.Sequential(
            torch.nn.Linear(x.shape[1], width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 1),
        )
        optimizer = torch.optim.Adam(model.parameters())
        loss_of = torch.nn.BCEWithLogitsLoss()
        order = np.random.default_rng(seed).permutation(len(x))

        def fit(step: int) -> float:
            total = 0.0
            for batch in range(step * batches, (step + 1) * batches):
                rows = np.take(order, range(batch * _BATCH, (batch + 1) * _BATCH), mode="wrap")
                optimizer.zero_grad()
                loss = loss_of(model(inputs[rows]).squeeze(1), labels[rows])
                loss.backward()
                optimizer.step()
                total += loss.item()
            return total / batches

        def predict() -> Any:
            with torch.no_grad():
                return model(inputs).squeeze(1).numpy()

        return fit, lambda: pickle.dumps(model.state_dict()), predict

    return _train(began, name, steps, build)


@flow
def train_xgboost(name: str, seed: int, steps: int, depth: int) -> float:
    """Boosted trees on a table; one step is one round."""
    began = time.monotonic()
    import xgboost

    def build(x: Any, y: Any) -> tuple[Callable[[int], float], Callable[[], bytes], Callable[[], Any]]:
        data = xgboost.DMatrix(x, y, nthread=1)
        params = {
            "max_depth": depth,
            "seed": seed,
            "subsample": 0.8,
            "eta": 0.1,
            "nthread": 1,
            "objective": "binary:logistic",
        }
        booster = xgboost.Booster(params, [data])

        def fit(step: int) -> float:
            booster.update(data, step)
            return float(booster.eval(data).rpartition(":")[2])

        return fit, lambda: bytes(booster.save_raw()), lambda: booster.predict(data)

    return _train(began, name, steps, build)


def _train(began: float, name: str, steps: int, build: Callable[..., Any]) -> float:
    marks: dict[str, Any] = {"name": name, "began": began}
    loss = float("nan")
    with training_run(steps=steps) as run:
        x, y = _load(Path(os.environ[ENV_DATA]))
        fit, weights, predict = build(x, y)
        marks["prepared"] = time.monotonic()
        run.ready()
        bind([DEVICE_CORE])
        marks["first_step"] = time.monotonic()
        for step in run.steps():
            loss = fit(step)
            run.report(loss=loss)
        marks["trained"] = time.monotonic()
        # Somebody may have moved the process meanwhile: what it then measured is not what we say.
        marks["on_device"] = os.sched_getaffinity(0) == {DEVICE_CORE}
    with run.saving():
        bind([HOST_CORE])
        _save(Path(os.environ[ENV_FOLDER]), name, weights(), predict(), y)
        marks["saved"] = time.monotonic()
    _write_down(Path(os.environ[ENV_FOLDER]), {**marks, "loss": loss})
    return loss


def _load(path: Path) -> tuple[Any, Any]:
    """Parse the table, drop what occurs twice, replace each column by its ranks."""
    import pandas as pd

    table = pd.read_csv(path).drop_duplicates()
    ranks = table.drop(columns="label").rank(pct=True)
    return ((ranks - 0.5) * 3.4).to_numpy("float32"), table["label"].to_numpy()


def _save(folder: Path, name: str, weights: bytes, predictions: Any, labels: Any) -> None:
    """The model, a table of its predictions and an optimiser's ballast: written, flushed, read again and checked."""
    import pandas as pd

    table = pd.DataFrame({"prediction": predictions, "label": labels}).to_csv()
    parts = {"model": gzip.compress(weights), "predictions": gzip.compress(table.encode())}
    parts["optimizer"] = (weights * (_WEIGHTS_BYTES // len(weights) + 1))[:_WEIGHTS_BYTES]
    for part, content in parts.items():
        path = folder / f"{name}.{part}"
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if hashlib.sha256(path.read_bytes()).digest() != hashlib.sha256(content).digest():
            raise OSError(f"{path} is not what was written")
        path.unlink()


def _write_down(folder: Path, marks: dict[str, Any]) -> None:
    temporary = folder / f"{marks['name']}.tmp"
    temporary.write_text(json.dumps(marks))
    temporary.replace(folder / f"{marks['name']}.json")
