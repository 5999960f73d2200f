"""Which trainings a sweep consists of, and the table that they read."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

_COLUMNS = 24


@dataclass(frozen=True)
class Training:
    """One training: a flow of :mod:`benchmarks.sweep.flows`, and its parameters."""

    flow: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique in its sweep."""
        return str(self.parameters["name"])


def sweep(count: int, seed: int, scale: float = 1.0) -> list[Training]:
    """A random search of a network and of boosted trees, half and half, in the order in which it is submitted.

    Args:
        count: How many trainings.
        seed: Another one gives other parameters of the same ranges.
        scale: Of the number of steps.
    """
    chance = random.Random(seed)
    found = []
    for number in range(count):
        # Most are short, a few are long: 1 to 6 units of about five seconds, as one core takes.
        units = scale * min(6.0, chance.paretovariate(1.3))
        name = f"{seed}-{number:02d}"
        if number % 2:
            depth = chance.choice((4, 6, 8))
            own = {"steps": max(2, round(200 * units)), "depth": depth}
            found.append(Training("train_xgboost", {"name": name, "seed": number, **own}))
        else:
            width = chance.choice((64, 128, 192))
            own = {"steps": max(2, round(80 * units)), "width": width}
            found.append(Training("train_torch", {"name": name, "seed": number, **own}))
    return found


def write_table(path: Path, rows: int = 150_000) -> None:
    """The table that every training reads: numbers, and a label that follows from them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, _COLUMNS))
    label = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=rows) > 0).astype(int)
    header = ",".join([*(f"c{number}" for number in range(_COLUMNS)), "label"])
    formats = ["%.9g"] * _COLUMNS + ["%d"]
    np.savetxt(path, np.column_stack([x, label]), fmt=formats, delimiter=",", header=header, comments="")
