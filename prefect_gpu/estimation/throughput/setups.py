"""Resources that a program trains on, and how fast it was on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MOST_SETUPS = 64  # of a program: the time of a fit grows with their number, and more hardly tell more
_FURTHEST = 1e6  # batches that differ by more than this factor from the usual one count as if by this


@dataclass(frozen=True, slots=True)
class Setup:
    """Resources R.

    Attributes:
        gpus: GPUs in all, at least 1.
        nodes: Nodes that they are on, 1 to ``gpus``.
        kind: Kind of the GPUs; None: unknown, which counts as a kind of its own.
        batch_size: Samples of one step over all GPUs; None: as usual for the program.
    """

    gpus: int = 1
    nodes: int = 1
    kind: str | None = None
    batch_size: float | None = None

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"gpus is {self.gpus}: give at least 1")
        if not 1 <= self.nodes <= self.gpus:
            raise ValueError(f"nodes is {self.nodes} with {self.gpus} GPUs: give 1 to {self.gpus}")
        if self.batch_size is not None and not 0 < self.batch_size < math.inf:
            raise ValueError(f"batch_size is {self.batch_size}: give samples of one step over all GPUs, above 0")


@dataclass(frozen=True, slots=True)
class Tried:
    """How fast a program was.

    Attributes:
        steps_per_s: Training steps per second.
        runs: Measurements that this is the mean of.
    """

    setup: Setup
    steps_per_s: float
    runs: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.steps_per_s < math.inf:
            raise ValueError(f"steps_per_s is {self.steps_per_s}: leave out what did not run, and give a finite rate")
        if self.runs < 1:
            raise ValueError(f"runs is {self.runs}: give the number of measurements, at least 1")


def merged(tried: Iterable[Tried]) -> list[Tried]:
    """One entry for each setup: the geometric mean of its rates. Of too many setups, those that were tried last."""
    groups: dict[Setup, list[Tried]] = {}
    for one in tried:
        groups.setdefault(one.setup, []).append(one)
        groups[one.setup] = groups.pop(one.setup)  # the latest last
    found = []
    for setup, ones in list(groups.items())[-MOST_SETUPS:]:
        runs = sum(one.runs for one in ones)
        mean = sum(one.runs * math.log(one.steps_per_s) for one in ones) / runs
        found.append(Tried(setup, math.exp(mean), runs))
    return found


@dataclass(frozen=True)
class Columns:
    """Setups as arrays of the same length; ``kinds`` holds indices, ``batch`` samples relative to the usual batch."""

    gpus: np.ndarray
    nodes: np.ndarray
    batch: np.ndarray
    kinds: np.ndarray

    @staticmethod
    def of(setups: Iterable[Setup], kinds: dict[str | None, int], usual_batch: float) -> Columns:
        """Setups in columns; every kind must be among ``kinds``."""
        rows = [(s.gpus, s.nodes, (s.batch_size or usual_batch) / usual_batch, kinds[s.kind]) for s in setups]
        table = np.array(rows, dtype=float).reshape(-1, 4)
        batch = np.clip(table[:, 2], 1 / _FURTHEST, _FURTHEST)
        return Columns(table[:, 0], table[:, 1], batch, table[:, 3].astype(int))

    @property
    def logs(self) -> np.ndarray:
        """Coordinates in which setups are near or far; shape (setups, 3)."""
        return np.log2(np.column_stack([self.gpus, self.nodes, self.batch]))


def usual_batch(setups: Iterable[Setup]) -> float:
    """The geometric mean of the batch sizes that are known; 1 without any."""
    logs = [math.log(setup.batch_size) for setup in setups if setup.batch_size is not None]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0
