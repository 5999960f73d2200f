"""The processes that are measured: four trainings that live on their input, and a flow that hammers the memory.

``python -m benchmarks.cores.trainings '{"program": ..., "parameters": {...}, "marks": file}'``; each goes on until it
is told to stop, and writes down when each of its steps ended.
"""

from __future__ import annotations

import abc
import gzip
import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from prefect_gpu.training import training_run

_FEATURES = 64


class _Samples(Dataset, abc.ABC):  # type: ignore[type-arg]
    """One input pipeline; each sample is made from stored bytes, as often as it is asked for."""

    def __init__(self, work: int) -> None:
        self._work = work
        self._raw = [self.make(np.random.default_rng(seed)) for seed in range(16)]

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> torch.Tensor:
        features = [self.read(self._raw[(index + turn) % len(self._raw)], index) for turn in range(self._work)]
        return torch.from_numpy(np.mean(features, axis=0, dtype=np.float32))

    @abc.abstractmethod
    def make(self, random: np.random.Generator) -> bytes:
        """What lies on a disk."""

    @abc.abstractmethod
    def read(self, raw: bytes, index: int) -> Any:
        """The work of the pipeline: 64 features."""


class Images(_Samples):
    """JPEG pictures are decoded, cropped, mirrored and scaled (Pillow)."""

    def make(self, random: np.random.Generator) -> bytes:
        from PIL import Image

        file = io.BytesIO()
        pixels = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((256, 256)).save(file, "JPEG", quality=90)
        return file.getvalue()

    def read(self, raw: bytes, index: int) -> Any:
        from PIL import Image, ImageOps

        picture = Image.open(io.BytesIO(raw)).convert("RGB")
        left = index % 32
        picture = picture.crop((left, left, left + 224, left + 224))
        if index % 2:
            picture = ImageOps.mirror(picture)
        return np.asarray(picture.resize((8, 8)).convert("L"), dtype=np.float32).ravel() / 255


class Tables(_Samples):
    """CSV is parsed and standardised (pandas)."""

    def make(self, random: np.random.Generator) -> bytes:
        rows = random.normal(size=(400, _FEATURES)).round(4)
        return "\n".join(",".join(map(str, row)) for row in rows).encode()

    def read(self, raw: bytes, index: int) -> Any:
        import pandas

        values = pandas.read_csv(io.BytesIO(raw), header=None).to_numpy()
        return ((values - values.mean(0)) / values.std(0)).max(0)


class Texts(_Samples):
    """Words are found, folded and counted by hash (the standard library)."""

    def make(self, random: np.random.Generator) -> bytes:
        letters = np.array(list("abcdefghijklmnopqrstuvwxyzABCDE.,!?"))
        return " ".join("".join(random.choice(letters, 6)) for _ in range(4000)).encode()

    def read(self, raw: bytes, index: int) -> Any:
        counts = np.zeros(_FEATURES)
        for word in re.findall(r"[a-z]+", raw.decode().lower()):
            counts[sum(word.encode()) % _FEATURES] += 1
        return np.log1p(counts)


class Archives(_Samples):
    """Arrays are unpacked and reduced (gzip, NumPy)."""

    def make(self, random: np.random.Generator) -> bytes:
        return gzip.compress(random.integers(0, 20, 400 * _FEATURES).astype(np.float32).tobytes())

    def read(self, raw: bytes, index: int) -> Any:
        return np.frombuffer(gzip.decompress(raw), dtype=np.float32).reshape(-1, _FEATURES).std(0)


PIPELINES: dict[str, Callable[[int], _Samples]] = {
    "images": Images,
    "tables": Tables,
    "texts": Texts,
    "archives": Archives,
}


def train(samples: _Samples, loaders: int, batch: int, marks: Path) -> None:
    """A small network learns from the pipeline, in steps of one batch."""
    torch.set_num_threads(1)
    ended: list[float] = []
    with training_run() as run:
        model = torch.nn.Sequential(torch.nn.Linear(_FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        arriving = iter(DataLoader(samples, batch_size=batch, num_workers=loaders, prefetch_factor=2))
        for _ in run.steps():
            loss = model(next(arriving)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss=float(loss.detach()))
            ended.append(time.time())
    marks.write_text(json.dumps({"step_at": ended}))
    sys.stdout.flush()
    del arriving


def stream(mebibytes: int, marks: Path) -> None:
    """A training that lives on memory bandwidth: it updates weights that are larger than the caches."""
    ended: list[float] = []
    with training_run() as run:
        weights = np.ones(mebibytes * 2**18, dtype=np.float32)
        gradient = np.full_like(weights, 1e-6)
        for _ in run.steps():
            np.multiply(gradient, 0.999, out=gradient)
            np.subtract(weights, gradient, out=weights)
            run.report(loss=float(weights[0]))
            ended.append(time.time())
    marks.write_text(json.dumps({"step_at": ended}))


def hammer(mebibytes: int, processes: int) -> None:
    """A flow that copies memory back and forth in so many processes, until it is ended."""
    import os

    for _ in range(processes - 1):
        if os.fork() == 0:
            break
    a, b = np.zeros(mebibytes * 2**17), np.ones(mebibytes * 2**17)
    while True:
        np.copyto(a, b)
        np.copyto(b, a)


def main(order: dict[str, Any]) -> None:
    """Do what the order says."""
    program, parameters = order["program"], order["parameters"]
    marks = Path(order["marks"])
    if program == "hammer":
        hammer(**parameters)
    elif program == "stream":
        stream(**parameters, marks=marks)
    else:
        work = parameters["work"]
        train(PIPELINES[program](work), parameters["loaders"], parameters["batch"], marks)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
