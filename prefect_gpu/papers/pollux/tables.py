"""What Pollux' authors measured of their models: step times by placement, and what a step brings by batch and epoch."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.interpolate import LinearNDInterpolator

from prefect_gpu.estimation.goodput.noise import gain

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_LARGEST_LOCAL = {"yolov3": 8}  # a GPU holds no more samples of it; of the others, as many as were measured
_MOST_NODES = 16  # step times of more nodes were not measured: they are taken for those of 16
_MOST_GPUS = 64  # nor were those of more GPUs
_CANDIDATES = 50  # batch sizes that are compared
_EPS = 1e-8
_STEPS = ("local_bsz", "step_time", "sync_time")
_VALIDATION = ("progress", "iteration", "grad_sqr", "grad_var")

Placement = tuple[int, ...]
"""GPUs on each node, in the order of the nodes."""


@dataclass(frozen=True)
class Batch:
    """How a job's batch is split.

    Attributes:
        atomic: Samples that a GPU takes at once.
        accumulation: How often a GPU takes so many more before all of them synchronise.
    """

    atomic: int
    accumulation: int = 0

    def total(self, gpus: int) -> int:
        """Samples per step of all GPUs."""
        return gpus * self.atomic * (self.accumulation + 1)


@dataclass(frozen=True)
class Best:
    """The batches of most goodput on one placement, by epoch.

    Attributes:
        goodput: Progress per second; shape (epochs,).
        batches: The batch that gives it.
    """

    goodput: np.ndarray
    batches: tuple[Batch, ...]


@dataclass(frozen=True)
class Candidates:
    """Batches to choose from for one number of GPUs, as they are and in columns; shape (batches,).

    Attributes:
        scale: Batch size over initial batch size.
    """

    batches: tuple[Batch, ...]
    atomic: np.ndarray
    accumulation: np.ndarray
    scale: np.ndarray

    def best(self, goodput: np.ndarray) -> Best:
        """The best batch of each epoch; ``goodput`` has shape (epochs, batches)."""
        return Best(goodput.max(axis=1), tuple(self.batches[at] for at in goodput.argmax(axis=1)))


class Application:
    """One model's tables.

    Args:
        folder: Holds ``placements.csv``, ``scalability.csv`` and ``validation-<batch size>.csv``; it is named like the
            model.

    Raises:
        FileNotFoundError: A table is missing.
        ValueError: A file is no such table.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        files = sorted(folder.glob("validation-*.csv"), key=_batch_of)
        if not files:
            raise FileNotFoundError(f"{folder} holds no validation-*.csv: name the folder of Pollux' traces")
        runs = [_read(path, _VALIDATION) for path in files]
        epochs = min(len(run["progress"]) for run in runs)
        self.epochs = min(EPOCHS.get(self.name, epochs), epochs)
        self.batch_sizes = np.array([_batch_of(path) for path in files], dtype=float)
        self._sqr = np.array([run["grad_sqr"][:epochs] for run in runs])
        self._var = np.array([run["grad_var"][:epochs] for run in runs])
        self._iterations = np.array([run["iteration"][:epochs] for run in runs])
        self.ends = np.min([run["progress"][:epochs] for run in runs], axis=0).tolist()
        """Progress at the end of each epoch."""
        placements = _read(folder / "placements.csv", ("placement", *_STEPS))
        scalability = _read(folder / "scalability.csv", ("num_nodes", "num_replicas", *_STEPS))
        self._measured: dict[Placement, np.ndarray] = _by_placement(placements)
        self._between = _interpolator(self._measured, scalability)
        self.initial = int(self.batch_sizes[0])
        self.largest = int(self.batch_sizes[-1])
        self.least_local = int(placements["local_bsz"].min())
        self.most_local = _LARGEST_LOCAL.get(self.name, int(placements["local_bsz"].max()))
        self._times: dict[tuple[Placement, int], tuple[float, float]] = {}
        self._goodput: dict[tuple[Placement, Batch, int], float] = {}
        self._best: dict[Placement, Best] = {}
        self._candidates: dict[int, Candidates] = {}

    # -- what is true ---------------------------------------------------------------------------------------------

    def step_s(self, placement: Placement, atomic: int) -> tuple[float, float]:
        """Seconds of a step, and of its synchronising, with so many samples per GPU.

        Raises:
            ValueError: It was not measured, nor anything around it.
        """
        key = (normal(placement), atomic)
        if key not in self._times:
            found = self._steps_s(key[0], np.array([atomic], dtype=float))[0]
            if not np.isfinite(found).all():
                raise ValueError(f"{self.name} was not measured on {placement} with {atomic} samples per GPU")
            self._times[key] = float(found[0]), float(found[1])
        return self._times[key]

    def noise(self, batch_size: float, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient in an epoch, as a job with this batch size measures them."""
        sqr, var = (np.interp(batch_size, self.batch_sizes, of[:, epoch]) for of in (self._sqr, self._var))
        return float(sqr), float(var)

    def goodput(self, placement: Placement, batch: Batch, epoch: int) -> float:
        """Progress per second: what a step brings, in steps of the initial batch size, over what it takes."""
        key = (normal(placement), batch, epoch)
        if key not in self._goodput:
            total = batch.total(sum(placement))
            sqr, var = self.noise(total, epoch)
            step_s, sync_s = self.step_s(placement, batch.atomic)
            brings = gain(sqr, var, total / self.initial)
            self._goodput[key] = brings / (step_s + (step_s - sync_s) * batch.accumulation)
        return self._goodput[key]

    def iterations(self, batch_size: float, epoch: int) -> float:
        """Steps from the beginning to the end of an epoch, with this batch size."""
        return float(np.interp(batch_size, self.batch_sizes, self._iterations[:, epoch]))

    def best(self, placement: Placement) -> Best:
        """The batches of most goodput, knowing all tables."""
        key = normal(placement)
        if key not in self._best:
            of = self.candidates(sum(key))
            times = self._steps_s(key, of.atomic)
            taken = times[:, 0] + (times[:, 0] - times[:, 1]) * of.accumulation
            totals, epochs = of.scale * self.initial, range(self.epochs)
            sqr = np.array([np.interp(totals, self.batch_sizes, self._sqr[:, epoch]) for epoch in epochs])
            var = np.array([np.interp(totals, self.batch_sizes, self._var[:, epoch]) for epoch in epochs])
            self._best[key] = of.best(np.nan_to_num(gain(sqr, var, of.scale) / taken))
        return self._best[key]

    # -- batches --------------------------------------------------------------------------------------------------

    @property
    def most_gpus(self) -> int:
        """On more GPUs than that, a job was not measured, or each would have fewer samples than were."""
        return min(self.largest // self.least_local, _MOST_GPUS)

    def fixed(self, batch_size: int, gpus: int) -> Batch:
        """How a batch of this size is split among so many GPUs."""
        local = math.ceil(batch_size / gpus - _EPS)
        accumulation = math.ceil(local / self.most_local - _EPS) - 1
        if gpus == 1 and batch_size > self.initial:
            accumulation = max(1, accumulation)  # the noise of the gradient cannot be told from a single one
        return self._within(math.ceil(local / (accumulation + 1) - _EPS), accumulation, gpus)

    def candidates(self, gpus: int) -> Candidates:
        """Batches to choose from: sizes in geometric steps, from the initial to the largest."""
        if gpus not in self._candidates:
            batches = self._geometric(gpus)
            self._candidates[gpus] = Candidates(
                batches,
                np.array([batch.atomic for batch in batches], dtype=float),
                np.array([batch.accumulation for batch in batches]),
                np.array([batch.total(gpus) for batch in batches], dtype=float) / self.initial,
            )
        return self._candidates[gpus]

    def _geometric(self, gpus: int) -> tuple[Batch, ...]:
        least = max(self.initial, self.least_local * gpus)
        if least > self.largest:
            return ()
        found = []
        for size in np.geomspace(least, self.largest, _CANDIDATES):
            local = size / gpus
            accumulation = math.ceil(local / self.most_local - _EPS) - 1
            if gpus == 1 and local > self.initial + _EPS:
                accumulation = max(1, accumulation)
            batch = self._within(math.ceil(local / (accumulation + 1) - _EPS), accumulation, gpus)
            if self.least_local <= batch.atomic <= self.most_local:
                found.append(batch)
        return tuple(dict.fromkeys(found))

    def _within(self, atomic: int, accumulation: int, gpus: int) -> Batch:
        return Batch(min(atomic, self.largest // (gpus * (accumulation + 1))), accumulation)

    def _steps_s(self, placement: Placement, atomic: np.ndarray) -> np.ndarray:
        """Seconds of steps and of their synchronising; shape (batches, 2); NaN where nothing was measured."""
        table = self._measured.get(placement)
        if table is not None:
            inside = (atomic >= table[0, 0]) & (atomic <= table[-1, 0])
            columns = [np.where(inside, np.interp(atomic, table[:, 0], table[:, at]), np.nan) for at in (1, 2)]
            return np.stack(columns, axis=1)
        nodes, gpus = min(len(placement), _MOST_NODES), sum(placement)
        return np.asarray(self._between(np.array([(nodes, gpus, local) for local in atomic]).reshape(-1, 3)))


def read_tables(folder: Path) -> dict[str, Application]:
    """The tables of all models below a folder, by name.

    Raises:
        FileNotFoundError: There is none.
        ValueError: A file is no such table.
    """
    found = {path.parent.name: path.parent for path in sorted(folder.rglob("placements.csv"))}
    if not found:
        raise FileNotFoundError(f"{folder} holds no placements.csv: name the folder of Pollux' traces")
    return {name: Application(at) for name, at in found.items()}


def normal(placement: Placement) -> Placement:
    """The smallest rotation: the ring of nodes has no beginning."""
    return min(placement[at:] + placement[:at] for at in range(len(placement)))


def packed(gpus: int, per_node: int) -> Placement:
    """So many GPUs on as few nodes as possible."""
    whole, rest = divmod(gpus, per_node)
    return (per_node,) * whole + ((rest,) if rest else ())


def _batch_of(path: Path) -> int:
    return int(path.stem.partition("-")[2])


def _read(path: Path, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """A table that has these columns, and maybe others. Raises ValueError for anything else."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        found = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
        return {name: np.array(found[name], dtype=str if name == "placement" else float) for name in columns}
    except (csv.Error, IndexError, KeyError, ValueError) as error:
        names = ", ".join(columns)
        raise ValueError(f"{path} is no table of {names} ({error}): name the folder of Pollux' traces") from None


def _by_placement(table: dict[str, np.ndarray]) -> dict[Placement, np.ndarray]:
    """Rows of local batch, step and synchronising by placement, in ascending order of local batches."""
    rows: dict[Placement, list[tuple[float, float, float]]] = defaultdict(list)
    values = (table[name].tolist() for name in ("placement", *_STEPS))
    for placement, *row in zip(*values, strict=True):
        rows[tuple(map(int, placement))].append((row[0], row[1], row[2]))
    return {placement: np.array(sorted(found)) for placement, found in rows.items()}


def _interpolator(measured: dict[Placement, np.ndarray], scalability: dict[str, np.ndarray]) -> LinearNDInterpolator:
    """Over (nodes, GPUs, local batch): means of the placements, and the placements of many nodes after them."""
    same: dict[tuple[int, int, float], list[Sequence[float]]] = defaultdict(list)
    for placement, table in measured.items():
        for local, *times in table.tolist():
            same[len(placement), sum(placement), local].append(times)
    points = sorted(same)
    means = [np.mean(same[point], axis=0) for point in points]
    many = np.stack([scalability[name] for name in ("num_nodes", "num_replicas", "local_bsz")], axis=1)
    times = np.stack([scalability[name] for name in ("step_time", "sync_time")], axis=1)
    return LinearNDInterpolator(np.concatenate([points, many]), np.concatenate([means, times]))
