"""How much faster programs are on one kind of device than on another: for a program that was not seen on a kind yet.

The time of a step is taken to be what the program needs times what the kind takes: a table of rank one, whose
logarithms are sums. Programs that ran on several kinds tell what the kinds take. How far single programs were from that
tells how sure it is: some gain more from a fast device than others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import STEP_S, TRAINING_S, FinishedRun

SPREAD_BEFORE = 0.25
"""How far a program's time on a kind is from that product, as a logarithm, as long as too few have shown it: of two
kinds, two programs in three gain between 0.7 and 1.4 times as much as is usual."""

_PRIOR_PROGRAMS = 2.0  # as many programs' worth as that weighs
_MOST_RUNS = 30  # the newest of each program and kind
_NOISE_VARIANCE = 0.02  # of one run's time, as a logarithm


class Shift(NamedTuple):
    """What another kind does to a program's time, as a logarithm: the mean, and how unsure it is."""

    mean: float
    std: float


class KindRatios:
    """Learned from the programs that ran on several kinds.

    Args:
        programs: The models of the programs, which bring their runs along.
    """

    def __init__(self, programs: Mapping[str, ProgramModel]) -> None:
        self._seen = {name: kinds_seen(model.runs) for name, model in programs.items()}
        cells = [
            (name, kind, mean, count)
            for name, model in programs.items()
            if len(self._seen[name]) > 1
            for kind, (mean, count) in _levels(model).items()
        ]
        self._kinds = sorted({kind for _, kind, _, _ in cells})
        self._group: dict[str, int] = {}
        self._spread = SPREAD_BEFORE
        self._levels = np.zeros(len(self._kinds))
        self._covariance = np.zeros((len(self._kinds), len(self._kinds)))
        if cells:
            self._learn(cells)

    @property
    def known(self) -> list[str]:
        """All kinds that some program has completed runs on."""
        return sorted(set().union(*self._seen.values()))

    def seen(self, program: str) -> Counter[str]:
        """The kinds that a program has completed runs on, and how many."""
        return self._seen.get(program, Counter())

    def shift(self, program: str, kind: str) -> tuple[str, Shift] | None:
        """(A kind that the program was seen on, what the other kind does to it); None if nothing tells."""
        known = [(count, seen) for seen, count in self.seen(program).items() if self._joined(seen, kind)]
        if not known:
            return None
        base = max(known)[1]
        at, to = self._kinds.index(base), self._kinds.index(kind)
        variance = self._covariance[at, at] + self._covariance[to, to] - 2.0 * self._covariance[at, to]
        spread = 2.0 * self._spread**2 + max(0.0, float(variance))
        return base, Shift(float(self._levels[to] - self._levels[at]), math.sqrt(spread))

    def _joined(self, one: str, other: str) -> bool:
        """Whether some programs, one after the other, compare the two kinds."""
        return one in self._group and self._group[one] == self._group.get(other)

    def _learn(self, cells: Sequence[tuple[str, str, float, int]]) -> None:
        """Weighted least squares of (program + kind); the programs' own deviations say how far that holds."""
        names = sorted({name for name, *_ in cells})
        rows, columns = len(cells), len(names) + len(self._kinds)
        x, y = np.zeros((rows, columns)), np.array([mean for _, _, mean, _ in cells])
        for at, (name, kind, _, _) in enumerate(cells):
            x[at, names.index(name)] = x[at, len(names) + self._kinds.index(kind)] = 1.0
        self._group_kinds(cells)
        free = rows - np.linalg.matrix_rank(x)
        for _ in range(2):  # with the spread that was expected, then with the one that was found
            weights = np.array([1.0 / (self._spread**2 + _NOISE_VARIANCE / count) for *_, count in cells])
            inverse = np.linalg.pinv(x.T @ (weights[:, None] * x))
            found = inverse @ (x.T @ (weights * y))
            squares = float(np.sum((y - x @ found) ** 2))
            prior = _PRIOR_PROGRAMS * SPREAD_BEFORE**2
            self._spread = math.sqrt((squares + prior) / (free + _PRIOR_PROGRAMS))
        self._levels = found[len(names) :]
        self._covariance = inverse[len(names) :, len(names) :]

    def _group_kinds(self, cells: Sequence[tuple[str, str, float, int]]) -> None:
        self._group = {kind: at for at, kind in enumerate(self._kinds)}
        for name in {name for name, *_ in cells}:
            own = [self._group[kind] for other, kind, *_ in cells if other == name]
            self._group = {kind: min(own) if at in own else at for kind, at in self._group.items()}


def kinds_seen(runs: Sequence[FinishedRun]) -> Counter[str]:
    """The kinds that runs have completed on, and how many on each."""
    return Counter(
        run.known.device_kind
        for run in runs
        if run.known.device_kind and run.completed and (STEP_S in run.measured or TRAINING_S in run.measured)
    )


def _levels(model: ProgramModel) -> dict[str, tuple[float, int]]:
    """By kind: the mean of the logarithms of what the program takes there, and how many runs have shown it.

    Runs with other parameters are no comparison: each is compared with what its program's model makes of it on a kind.
    """
    target = STEP_S if STEP_S in model.models else TRAINING_S
    if target not in model.models:
        return {}
    counts = kinds_seen(model.runs)
    some = model.runs[-_MOST_RUNS:]
    rows = [model.row(run.known)[0] for run in some]
    found = {}
    for kind, count in counts.items():
        there = [_on(model, run, row, kind) for run, row in zip(some, rows, strict=True)]
        mean, _ = model.models[target].predict(np.array(there))
        base = model.base(target)
        found[kind] = (float(np.mean(np.log(base + np.exp(mean)))), count)
    return found


def _on(model: ProgramModel, run: FinishedRun, row: np.ndarray, kind: str) -> np.ndarray:
    return row if run.known.device_kind == kind else model.row(replace(run.known, device_kind=kind))[0]
