"""One model across programs (Liquid §4): for programs of which nothing, or almost nothing, is known yet."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prefect_gpu.estimation.program.features import Encoder, Value
from prefect_gpu.estimation.program.model import STEPS, ProgramModel
from prefect_gpu.estimation.program.regressors import DEFAULT, REGRESSORS, make_regressor, predictor
from prefect_gpu.estimation.runs import STEP_S, TARGETS, TRAINING_S

LEAST_PROGRAMS = 3  # before anything is said of a program that nobody has seen
_MOST_RUNS = 2_000  # in all, as many of each program; more say little of programs that nobody has seen
_MOST_COMPARED = 250  # runs for choosing a regressor
_FOLDS = 3


class CrossProgramModel:
    """Learned from all programs together. It knows a program only by the facts that its runs share with others'.

    Args:
        programs: The programs' models, which bring their runs along.
        seed: The same runs and seed give the same model.

    Attributes:
        chosen: By target, the regressor that predicts left-out programs best.
        left_out: By target, what runs of left-out programs measured minus what was predicted, on the learned scale.
    """

    def __init__(self, programs: Mapping[str, ProgramModel], seed: int = 0) -> None:
        each = max(1, _MOST_RUNS // max(1, len(programs)))
        taken = [(name, model, at) for name, model in sorted(programs.items()) for at in _newest(model, each)]
        self._encoder = Encoder([model.usable[at] for _, model, at in taken])
        self.chosen: dict[str, str] = {}
        self.left_out: dict[str, np.ndarray] = {}
        self._predictors = {}
        matrix = self._encoder.matrix(model.usable[at] for _, model, at in taken)
        if not matrix.shape[1]:
            return  # no parameter varies in any of them: nothing tells which of them a new program is like
        for target in TARGETS:
            rows = [row for row, (_, model, at) in enumerate(taken) if target in model.runs[at].measured]
            groups = np.array([taken[row][0] for row in rows])
            if len(set(groups)) < LEAST_PROGRAMS:
                continue
            x = matrix[rows]
            y = np.array([taken[row][1].measured(target, taken[row][2]) for row in rows])
            name, left_out = _choose(x, y, groups, seed)
            self.chosen[target], self.left_out[target] = name, left_out
            regressor = make_regressor(name, runs=len(rows), seed=seed)
            regressor.fit(x, y)
            self._predictors[target] = predictor(regressor)

    def predict(self, facts: Mapping[str, Value], warnings: list[str] | None = None) -> dict[str, float]:
        """The mean by target, on the learned scales; nothing if too few programs are known."""
        if not self._predictors:
            return {}
        row = np.array(self._encoder.row(facts, warnings))
        found = {target: predict(row) for target, predict in self._predictors.items()}
        steps = facts.get(STEPS)
        if STEP_S in found and isinstance(steps, float) and steps > 0:
            found[TRAINING_S] = found[STEP_S] + float(np.log(steps))
        return found


def _newest(model: ProgramModel, most: int) -> range:
    return range(max(0, len(model.runs) - most), len(model.runs))


def _choose(x: np.ndarray, y: np.ndarray, groups: np.ndarray, seed: int) -> tuple[str, np.ndarray]:
    """(The regressor with the least error on programs that it has not seen, its errors there); shape (runs,)."""
    generator = np.random.default_rng(seed)
    if len(y) > _MOST_COMPARED:
        some = np.sort(generator.choice(len(y), _MOST_COMPARED, replace=False))
        x, y, groups = x[some], y[some], groups[some]
    names = np.array(sorted(set(groups)))
    fold_of = dict(zip(names, generator.permutation(len(names)) % _FOLDS, strict=True))
    folds = np.array([fold_of[name] for name in groups])
    errors = {name: np.zeros(len(y)) for name in REGRESSORS}
    for fold in sorted(set(folds)):
        out = folds == fold
        for name, error in errors.items():
            regressor = make_regressor(name, runs=int((~out).sum()), seed=seed)
            regressor.fit(x[~out], y[~out])
            error[out] = y[out] - regressor.predict(x[out])
    # Absolute errors: one program that nothing predicts must not decide between regressors. Ties go to the paper's.
    best = min(REGRESSORS, key=lambda name: (float(np.mean(np.abs(errors[name]))), name != DEFAULT))
    return best, errors[best]
