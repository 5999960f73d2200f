"""How wide intervals must be to hold as often as they say: measured on runs that the predictions had not seen.

(Conformal prediction: the errors of left-out runs, in units of what was said to be their standard deviation, are
ranked; an interval of coverage 90 % reaches as far as the error that nine in ten of them stayed below.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from prefect_gpu.estimation.program.gaussian_process import LEAST_RUNS
from prefect_gpu.estimation.program.gaussian_process import fit as fit_process
from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import STEP_S, TARGETS, TRAINING_S

FOLDS = 8
_MOST_PROGRAMS = 25  # that are learned again without some of their runs; of the others, single runs are left out
_WELL_KNOWN = 100  # runs from which on leaving out single runs tells the same
_FEW = (1, 2, 4)  # runs of a program that is new
_UNTRIED = 4.0  # standard deviations where nothing was left out yet
_LEAST = 12  # left-out runs before they are believed alone


def reach(errors: Sequence[float] | np.ndarray, coverage: float, untried: float = _UNTRIED) -> float:
    """How far an interval must reach to hold in so many cases.

    Args:
        errors: Absolute errors of left-out runs, in any unit; the result has the same.
        coverage: Between 0 and 1.
        untried: The result where there are no errors; a few of them are blended with it.
    """
    count = len(errors)
    if not count:
        return untried
    ranked = np.sort(np.abs(np.asarray(errors, dtype=float)))
    rank = math.ceil((count + 1) * coverage)
    found = float(ranked[min(rank, count) - 1])
    if count >= _LEAST:
        return found
    return max(found, (count * found + (_LEAST - count) * untried) / _LEAST)


class Calibration:
    """How far intervals reach, in standard deviations, for known programs and for those with few runs.

    Args:
        programs: The programs' models.
        usual_spread: As the models were given.
        coverage: How often intervals are to hold, 0 to 1.
    """

    def __init__(
        self, programs: Mapping[str, ProgramModel], usual_spread: Mapping[str, float], coverage: float
    ) -> None:
        known: dict[str, list[float]] = {target: [] for target in TARGETS}
        few: dict[str, list[float]] = {target: [] for target in TARGETS}
        newest = sorted(programs, key=lambda name: (-programs[name].runs[-1].ended_at, name))
        for place, name in enumerate(newest):
            model = programs[name]
            for target in model.models:
                if len(model.values(target)) < LEAST_RUNS + 2:
                    continue
                again = place < _MOST_PROGRAMS and len(model.values(target)) < _WELL_KNOWN
                known[target] += list(_folded(model, target) if again else _single(model, target))
                if place < _MOST_PROGRAMS:
                    few[target] += list(_first_few(model, target, usual_spread.get(target, 1.0)))
        for book in (known, few):
            book[TRAINING_S] += book[STEP_S]  # where it is derived from them
        self.known = {target: reach(known[target], coverage) for target in TARGETS}
        self.few = {target: max(reach(few[target], coverage), self.known[target]) for target in TARGETS}


def _single(model: ProgramModel, target: str) -> np.ndarray:
    fitted = model.models[target]
    return fitted.left_out / fitted.left_out_std


def _folded(model: ProgramModel, target: str) -> np.ndarray:
    rows = np.array(model.rows(target))
    folds = np.arange(len(rows)) % min(FOLDS, len(rows))
    found = np.zeros(len(rows))
    for fold in range(min(FOLDS, len(rows))):
        out = folds == fold
        # All that is chosen for a model is chosen again: the runs that are left out must have had no say in it.
        base, fitted = model.fit(target, rows[~out].tolist())
        x, y, _ = model.table(target, rows[out].tolist(), base)
        mean, std = fitted.predict(x)
        found[out] = (y - mean) / std
    return found


def _first_few(model: ProgramModel, target: str, usual_spread: float) -> list[float]:
    x, y, groups = model.table(target)
    found: list[float] = []
    for count in _FEW:
        mean, std = fit_process(x[:count], y[:count], groups, usual_spread=usual_spread).predict(x[count : count + 5])
        found += list((y[count : count + 5] - mean) / std)
    return found
