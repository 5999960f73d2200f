"""Expected improvement per second: how good a trial would be, how long it would take, and which one promises most.

Snoek, Larochelle and Adams, *Practical Bayesian Optimization of Machine Learning Algorithms*, NeurIPS 2012, section
3.2: one Gaussian process for the value and one for the logarithm of the duration, both with Matérn 5/2 kernels, fitted
to the study's own trials; the expected improvement is divided by the expected duration. What the pool's worker has
learned about run lengths is not used: it is in the worker's history, which a sweep need not reach.

Trials that were stopped early count as in BOHB (Falkner et al., ICML 2018): values are compared at the highest step
that enough trials have reached.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import log
from statistics import median
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import norm

from prefect_gpu.training.trial import STEP_S, TRAINED

RUN_S = "run_s"
"""User attribute of a trial: seconds that its run took."""

_FEWEST = 8  # trials with a value; before that the sampler explores, and so do we
_LATEST = 200  # trials are fitted: the time of that grows with the cube of their number


def best_per_second(known: Sequence[FrozenTrial], candidates: Sequence[FrozenTrial], *, maximize: bool) -> int:
    """Which candidate has the largest expected improvement per expected second; 0 as long as too little is known."""
    values = comparable(known[-_LATEST:], maximize=maximize)
    durations = seconds(known[-_LATEST:])
    if len(values) < _FEWEST or len(durations) < _FEWEST:
        return 0
    by_number = {trial.number: trial for trial in known}
    kinds = {name: kind for trial in candidates for name, kind in sorted(trial.distributions.items())}
    at = encoded(candidates, kinds)
    mean, spread = _predict(encoded([by_number[number] for number in values], kinds), _without_peaks(values), at)
    log_s = np.log(list(durations.values()))
    expected, _ = _predict(encoded([by_number[number] for number in durations], kinds), log_s, at)
    better = min(values.values()) - mean
    z = better / spread
    log_improvement = np.log(np.maximum(better * norm.cdf(z) + spread * norm.pdf(z), 1e-300))
    return int(np.argmax(log_improvement - expected))


def comparable(known: Sequence[FrozenTrial], *, maximize: bool) -> dict[int, float]:
    """By trial: its value at the highest step that enough trials have reached, or at its end. Smaller is better."""
    sign = -1.0 if maximize else 1.0
    steps = sorted({step for trial in known for step in trial.intermediate_values}, reverse=True)
    enough = max([_FEWEST, *(len(trial.params) + 2 for trial in known)])
    ended = {
        trial.number: sign * trial.value
        for trial in known
        if trial.state is TrialState.COMPLETE and trial.value is not None and np.isfinite(trial.value)
    }
    if len(ended) >= enough:
        return ended
    for step in steps:
        found = {
            trial.number: sign * trial.intermediate_values[step]
            for trial in known
            if np.isfinite(trial.intermediate_values.get(step, np.nan))
        }
        if len(found) >= enough:
            return found
    return ended


def seconds(known: Sequence[FrozenTrial]) -> dict[int, float]:
    """By trial: seconds of a step where trials have measured that, else of its run."""
    for name in (STEP_S, RUN_S):
        found = {trial.number: float(trial.user_attrs[name]) for trial in known if trial.user_attrs.get(name)}
        if found:
            return found
    return {}


def start_seconds(known: Sequence[FrozenTrial]) -> float | None:
    """What a start costs: from the end of one training to the beginning of the next one in its place, in the median.

    None as long as too little is known. In a pool that others use, too, the wait for a device is a part of it.
    """
    events = []
    for trial in known:
        for begins, ends in trial.user_attrs.get(TRAINED, ()):
            events.append((begins, True))
            if ends is not None:
                events.append((ends, False))
    free: list[float] = []  # ends that nobody has followed yet
    gaps = []
    for at, begins in sorted(events):
        if not begins:
            free.append(at)
        elif free:  # the last one: those before it may have left their places to others
            gaps.append(at - free.pop())
    return median(gaps[-_LATEST:]) if len(gaps) >= _FEWEST else None


def encoded(trials: Sequence[FrozenTrial], kinds: Mapping[str, BaseDistribution]) -> Any:
    """Parameters as numbers from 0 to 1; a parameter that a trial does not have is halfway."""
    columns = []
    for name, kind in kinds.items():
        columns += _columns([trial.params.get(name) for trial in trials], kind)
    return np.array(columns).T


def _columns(values: Sequence[Any], kind: BaseDistribution) -> list[list[float]]:
    if isinstance(kind, CategoricalDistribution):
        return [[float(value == choice) for value in values] for choice in kind.choices]
    if not isinstance(kind, (FloatDistribution, IntDistribution)) or kind.low == kind.high:
        return [[0.5] * len(values)]
    scale = log if kind.log else float
    low, width = scale(kind.low), scale(kind.high) - scale(kind.low)
    return [[0.5 if value is None else (scale(value) - low) / width for value in values]]


def _without_peaks(values: Mapping[int, float]) -> Any:
    """Values to fit: one loss of 1e9 would make all others look alike."""
    y = np.array(list(values.values()))
    middle = np.median(y)
    return np.minimum(y, middle + 4 * (middle - y.min()))


def _predict(x: Any, y: Any, at: Any) -> tuple[Any, Any]:
    """Mean and standard deviation of a Gaussian process at some places."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    kernel = ConstantKernel() * Matern(np.full(x.shape[1], 0.5), (0.05, 20.0), nu=2.5) + WhiteKernel(0.01, (1e-5, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a length that does not matter runs into its bound
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x, y)
        mean, spread = process.predict(at, return_std=True)
    return mean, np.maximum(spread, 1e-9)
