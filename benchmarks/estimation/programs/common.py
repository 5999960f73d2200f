"""What the programs share: data with some structure, a slow volume to read it from, and durable saving."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np


def table(rows: int, columns: int, seed: int, classes: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A table of float32 whose target depends on its columns, with noise.

    Args:
        classes: Labels 0 to classes - 1 of about equal frequency; 0 makes a target for a regression.
    """
    rng = np.random.default_rng(seed)
    data = rng.random((rows, columns), dtype=np.float32)
    data -= 0.5
    weights = rng.standard_normal(columns).astype(np.float32)
    target = data @ weights + np.sin(4 * data[:, 0]) + 0.1 * rng.standard_normal(rows).astype(np.float32)
    if classes:
        borders = np.quantile(target, np.linspace(0, 1, classes + 1)[1:-1])
        return data, np.searchsorted(borders, target)
    return data, target


def batch_at(step: int, batch_size: int, rows: int) -> slice:
    """Where the batch of a step lies when the data are read in order, again and again."""
    begin = step * batch_size % max(1, rows - batch_size + 1)
    return slice(begin, begin + batch_size)


class SlowVolume:
    """A file of float32 rows on a volume that reads at a limited rate, as cloud volumes do.

    Args:
        mb_per_s: Megabytes per second that the volume gives.
    """

    def __init__(self, path: Path, data: np.ndarray, mb_per_s: float) -> None:
        with path.open("wb") as file:
            data.tofile(file)
        self.rows, self._columns = data.shape
        self._bytes_per_s = mb_per_s * 1e6
        self._file = path.open("rb")

    def read(self, rows: slice) -> np.ndarray:
        """Read rows; takes as long as the volume's rate makes it."""
        began = time.monotonic()
        self._file.seek(rows.start * self._columns * 4)
        found = np.fromfile(self._file, dtype=np.float32, count=(rows.stop - rows.start) * self._columns)
        time.sleep(max(0.0, found.nbytes / self._bytes_per_s - (time.monotonic() - began)))
        return found.reshape(-1, self._columns)


def save(name: str, **parts: Any) -> None:
    """Write a model, its predictions or embeddings so that they survive a power failure."""
    with Path(name).open("wb") as file:
        for part in parts.values():
            if isinstance(part, np.ndarray):
                part.tofile(file)
            else:
                pickle.dump(part, file)
        file.flush()
        os.fsync(file.fileno())
