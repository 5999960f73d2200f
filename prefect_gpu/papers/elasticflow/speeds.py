"""Measured speeds by model, batch size and number of GPUs, as ElasticFlow's authors published them."""

from __future__ import annotations

import csv
from pathlib import Path

Speeds = dict[tuple[str, int], dict[int, float]]
"""By model and batch size: iterations per second by number of GPUs, only numbers that make it faster."""

_MOST_GPUS = {
    ("gpt2", 128): 16,
    ("gpt2", 256): 32,
    ("bert", 64): 8,
    ("inception3", 64): 16,
    ("inception3", 128): 32,
    ("resnet50", 64): 32,
    ("vgg16", 64): 32,
}
"""Where a job may have fewer GPUs than samples; the rest is in :func:`most_gpus`."""


def most_gpus(model: str, batch: int) -> int:
    """GPUs that the authors let a job have at most."""
    if model == "deepspeech2":
        return batch
    return _MOST_GPUS.get((model, batch), 16 if model == "bert" else min(batch, 64))


def read_speeds(folder: Path) -> Speeds:
    """The tables ``<model>.csv`` of a folder: a row by batch size, a column by number of GPUs.

    Raises:
        FileNotFoundError: The folder holds no table.
        ValueError: A table has no column ``global_batch_size``, or what should be a number is none.
    """
    found: Speeds = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            names = [name for name in rows.fieldnames or () if name.isdigit()]
            if "global_batch_size" not in (rows.fieldnames or ()):
                raise ValueError(
                    f"{path} has no column 'global_batch_size': name a folder of ElasticFlow's throughputs"
                )
            for row in rows:
                try:
                    batch = int(row["global_batch_size"])
                    measured = {int(name): float(row[name] or 0) for name in names}
                except ValueError as error:
                    raise ValueError(f"{path}, line {rows.line_num}: {error}. Give numbers.") from None
                found[path.stem, batch] = rising(measured, most_gpus(path.stem, batch))
    if not found:
        raise FileNotFoundError(f"{folder} holds no <model>.csv: name the folder of ElasticFlow's throughputs")
    return found


def rising(measured: dict[int, float], most: int) -> dict[int, float]:
    """Only numbers of GPUs that are faster than any smaller one, up to a limit."""
    found: dict[int, float] = {}
    for gpus, speed in sorted(measured.items()):
        if gpus <= most and speed > max(found.values(), default=0.0):
            found[gpus] = speed
    return found
