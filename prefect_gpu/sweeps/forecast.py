"""What a trial would be worth at its next rungs, and how long it would take to get there.

One Gaussian process over the parameters *and* the logarithm of the step is fitted to all values that trials have
reported at rungs, as in DyHPO (Wistuba, Kadra and Grabocka, *Supervising the Multi-Fidelity Race of Hyperparameter
Configurations*, NeurIPS 2022), with a plain kernel in the place of their network. So it knows that learning curves
cross: which parameters lead at the first rung, and which ones later. What a trial has reported itself is among the
points, so that its own curve counts most. A second process has the logarithm of the seconds of a step.

A trial's *promise* is the largest expected improvement on the best value so far, divided by the seconds until then, of
all rungs that it has before it. New trials and stopped ones are compared by it: nobody need say how many of either.
What a start costs is among the seconds, as it was seen to be: where starts are dear, there are fewer and longer ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm

from prefect_gpu.sweeps.cost import encoded, seconds, start_seconds
from prefect_gpu.training.trial import STEPS

START_S = 1.0
"""Seconds of a device that a start takes, or a promotion, as long as too few have been seen."""

_FEWEST = 8  # trials that have reported and been timed; before that the rungs decide
_LATEST = 200  # trials are fitted: the time of that grows with the cube of their reports
_GROWN = 1.15  # by so much more reports, and the kernels are fitted again, and not the processes alone
_AT_MOST = 2.0  # values are cut where they are so many times as far above the middle as the best is below it
_SAME = 1e-4  # a length so small that only a trial itself is near
_GRID = np.linspace(-3.0, 3.0, 61)  # standard deviations, for the value that a trial needs


class Forecast:
    """Learns from a study's trials, again and again.

    Args:
        maximize: Whether the largest value is the best.
    """

    def __init__(self, *, maximize: bool) -> None:
        self._sign = -1.0 if maximize else 1.0
        self._values, self._costs = _Process(curves=True), _Process()
        self._kinds: dict[str, BaseDistribution] = {}
        self._scale, self._best, self._last = False, inf, 1
        self._start_s = START_S

    def learn(self, trials: Sequence[FrozenTrial], kinds: Mapping[str, BaseDistribution], last: int) -> bool:
        """Take in what trials have reported. False: that is too little.

        Args:
            trials: All of the study.
            kinds: The parameters.
            last: The last step of a training.
        """
        latest = trials[-_LATEST:]
        points = [
            (trial, step, self._sign * value)
            for trial in latest
            for step, value in _reports(trial, last).items()
            if isfinite(value) and step > 0
        ]
        step_s = seconds(latest)
        timed = [trial for trial in latest if trial.number in step_s]
        if min(len({trial.number for trial, *_ in points}), len(timed)) < _FEWEST or last < 2:
            return False
        self._kinds, self._last = dict(kinds), last
        self._start_s = START_S if (start_s := start_seconds(latest)) is None else start_s
        raw = np.array([value for *_, value in points])
        self._scale = bool(raw.min() > 0)  # a loss: from 0.02 to 0.01 is as far as from 2 to 1
        y = np.log(raw) if self._scale else raw
        self._best, middle = float(y.min()), float(np.median(y))
        y = np.minimum(y, middle + _AT_MOST * (middle - self._best))
        self._values.fit(self._at([trial for trial, *_ in points], [step for _, step, _ in points]), y)
        self._costs.fit(encoded(timed, self._kinds), np.log([step_s[trial.number] for trial in timed]))
        return True

    def promises(
        self,
        trials: Sequence[FrozenTrial],
        levels: Sequence[Sequence[int]],
        done: Sequence[int],
        training: Sequence[FrozenTrial] = (),
    ) -> Any:
        """By trial: logarithm of the expected improvement per second, at the best of the levels before it.

        Args:
            levels: By trial, the steps at which it could be looked at again.
            done: By trial, the steps that it has done.
            training: Others that train now. They are taken to end as predicted: nobody should try the same again.
        """
        values = self._values
        if training:
            values = values.believing(self._at(training, [self._last] * len(training)))
        step_s = self.step_seconds(trials)
        owner = np.array([at for at, of_one in enumerate(levels) for _ in of_one], dtype=int)
        steps = np.array([level for of_one in levels for level in of_one], dtype=float)
        mean, spread = values.predict(self._at([trials[at] for at in owner], steps))
        took = self._start_s + step_s[owner] * (steps - np.array(done)[owner])
        found = np.full(len(trials), -inf)
        np.maximum.at(found, owner, _log_improvement(self._best - mean, spread) - np.log(took))
        return found

    def needed(self, trial: FrozenTrial, level: int, after: Sequence[int], promise: float) -> float:
        """The worst value with which a trial that comes to a level still promises as much as others do.

        Args:
            after: The steps at which it would be looked at again, above the level.
            promise: Of the best of the others. The trial itself need not be started.
        """
        mean, cov = self._values.predict_together(self._at([trial] * (1 + len(after)), [level, *after]))
        spread = np.sqrt(np.maximum(np.diag(cov), 1e-12))
        values = mean[0] + spread[0] * _GRID
        slope = cov[0, 1:] / spread[0] ** 2
        left = np.sqrt(np.maximum(spread[1:] ** 2 - slope**2 * spread[0] ** 2, 1e-12))
        later = mean[1:] + slope * (values[:, None] - mean[0])
        best = np.minimum(self._best, values)[:, None]
        took = self.step_seconds([trial])[0] * (np.array(after) - level)
        promised = (_log_improvement(best - later, left) - np.log(took)).max(axis=1)
        enough = np.flatnonzero(promised >= promise)
        worst = float(values[enough[-1]] if len(enough) else values[0])
        return self._sign * (exp(worst) if self._scale else worst)

    def step_seconds(self, trials: Sequence[FrozenTrial]) -> Any:
        """By trial: the expected seconds of a step."""
        return np.exp(self._costs.predict(encoded(trials, self._kinds))[0])

    def _at(self, trials: Sequence[FrozenTrial], steps: Any) -> Any:
        return np.column_stack([encoded(trials, self._kinds), np.log(steps) / log(self._last)])


def _reports(trial: FrozenTrial, last: int) -> Mapping[int, float]:
    """By step, what a trial has reported, with its result at the last one."""
    if trial.state is TrialState.COMPLETE and trial.value is not None:
        return {min(last, trial.user_attrs.get(STEPS, last)): trial.value, **trial.intermediate_values}
    return trial.intermediate_values


class _Process:
    """A Gaussian process whose kernel is fitted now and then.

    Args:
        curves: Whether the last column is the step, and points that are equal but for it are one trial's. A trial then
            differs from its neighbours for good, and not by noise alone: it was lucky with its seed, say.
    """

    def __init__(self, *, curves: bool = False) -> None:
        self._curves = curves
        self._kernel: Any = None
        self._points, self._x, self._y = 0, np.empty((0, 0)), np.empty(0)
        self._process: Any = None

    def fit(self, x: Any, y: Any) -> None:
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        again = self._kernel is None or len(y) >= _GROWN * self._points or x.shape[1] != self._x.shape[1]
        if again:
            width = x.shape[1]
            lengths = Matern(np.full(width, 0.7), (0.08, 20.0), nu=2.5)
            self._kernel = ConstantKernel(1.0, (0.05, 50.0)) * lengths + WhiteKernel(0.01, (1e-4, 0.3))
            if self._curves:
                same = width - 1
                bounds = [(_SAME, 1.001 * _SAME)] * same + [(0.2, 5.0)]
                own = Matern([_SAME] * same + [0.7], bounds, nu=2.5)
                self._kernel = self._kernel + ConstantKernel(0.01, (1e-4, 0.5)) * own
            self._points = len(y)
        self._fitted(x, y, "fmin_l_bfgs_b" if again else None)
        self._kernel = self._process.kernel_

    def believing(self, x: Any) -> _Process:
        """Another one, which has seen what this one predicts at some places."""
        found = _Process(curves=self._curves)
        found._kernel = self._kernel
        found._fitted(np.vstack([self._x, x]), np.concatenate([self._y, self._process.predict(x)]), None)
        return found

    def _fitted(self, x: Any, y: Any, optimizer: str | None) -> None:
        from sklearn.gaussian_process import GaussianProcessRegressor

        self._x, self._y = x, y
        process = GaussianProcessRegressor(self._kernel, optimizer=optimizer, normalize_y=True, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a length that does not matter runs into its bound
            self._process = process.fit(x, y)

    def predict(self, x: Any) -> tuple[Any, Any]:
        mean, spread = self._process.predict(x, return_std=True)
        return mean, np.maximum(spread, 1e-6)

    def predict_together(self, x: Any) -> tuple[Any, Any]:
        mean, cov = self._process.predict(x, return_cov=True)
        return mean, cov


def _log_improvement(better: Any, spread: Any) -> Any:
    """Logarithm of the expected improvement, also where it is too small for a number."""
    z = better / spread
    near = np.log(np.maximum(norm.cdf(z) * better + spread * norm.pdf(z), 1e-300))
    # Far from the best, the improvement is the density over the square of the distance.
    far = norm.logpdf(z) + np.log(spread) - 2.0 * np.log(np.maximum(np.abs(z), 1.0))
    return np.where(z < -6.0, far, near)
