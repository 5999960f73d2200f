"""The five regressions that Liquid compares (§4, Fig. 10), and a quick way to ask a fitted one about a single run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

DEFAULT = "random-forest"  # the paper's choice
_MOST_PER_TREE = 10_000  # runs that each tree of a forest sees, so that the time of a fit stays bounded


class Regressor(Protocol):
    """What scikit-learn's and xgboost's regressors have in common."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> Any:
        """Learn from rows of numbers, shape (runs, width), and what was measured, shape (runs,)."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        """What to expect for each of some rows; shape (runs,)."""


def make_regressor(name: str, *, runs: int, seed: int = 0) -> Regressor:
    """A regressor that has learned nothing yet. It uses one core.

    Args:
        name: One of :data:`REGRESSORS`.
        runs: How many runs it will learn from.
        seed: The same seed and runs give the same regressor.

    Raises:
        ValueError: The name is none of them.
    """
    if name not in REGRESSORS:
        raise ValueError(f"regressor={name!r} is none of {', '.join(REGRESSORS)}.")
    return REGRESSORS[name](runs, seed)


def _random_forest(runs: int, seed: int) -> Regressor:
    from sklearn.ensemble import RandomForestRegressor

    most = None if runs <= _MOST_PER_TREE else _MOST_PER_TREE
    return RandomForestRegressor(100, max_samples=most, random_state=seed, n_jobs=1)


def _decision_tree(runs: int, seed: int) -> Regressor:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(random_state=seed)


def _gradient_boosting(runs: int, seed: int) -> Regressor:
    from xgboost import XGBRegressor

    return XGBRegressor(
        n_estimators=200, max_depth=4, learning_rate=0.1, tree_method="hist", n_jobs=1, random_state=seed
    )


def _adaboost(runs: int, seed: int) -> Regressor:
    from sklearn.ensemble import AdaBoostRegressor
    from sklearn.tree import DecisionTreeRegressor

    return AdaBoostRegressor(DecisionTreeRegressor(max_depth=8), n_estimators=50, random_state=seed)


def _linear(runs: int, seed: int) -> Regressor:
    from sklearn.linear_model import Ridge

    # As good as least squares, and defined where columns depend on each other. Other solvers warn of these.
    return Ridge(1e-3, solver="svd")


#: By name: the regressor for a number of runs and a seed.
REGRESSORS: dict[str, Callable[[int, int], Regressor]] = {
    "random-forest": _random_forest,
    "decision-tree": _decision_tree,
    "gradient-boosting": _gradient_boosting,
    "adaboost": _adaboost,
    "linear": _linear,
}


def predictor(regressor: Regressor) -> Callable[[np.ndarray], float]:
    """A function that predicts one row quickly: scikit-learn takes milliseconds to ask a forest about a single run."""
    kind = type(regressor).__name__
    if kind == "RandomForestRegressor":
        forest = _Trees([tree.tree_ for tree in regressor.estimators_])  # type: ignore[attr-defined]
        return lambda row: float(forest.values(row).mean())
    if kind == "AdaBoostRegressor":
        boosted = _Trees([tree.tree_ for tree in regressor.estimators_])  # type: ignore[attr-defined]
        weights = np.asarray(regressor.estimator_weights_)[: len(regressor.estimators_)]  # type: ignore[attr-defined]
        return lambda row: _weighted_median(boosted.values(row), weights)
    if kind == "XGBRegressor":
        booster = regressor.get_booster()  # type: ignore[attr-defined]
        return lambda row: float(booster.inplace_predict(row[None, :].astype(np.float32))[0])
    return lambda row: float(regressor.predict(row[None, :])[0])


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.argmax(reached >= 0.5 * reached[-1])])


class _Trees:
    """Some trees in one set of arrays, walked down together."""

    def __init__(self, trees: Sequence[Any]) -> None:
        starts = np.cumsum([0, *(tree.node_count for tree in trees)])
        self._roots = starts[:-1]
        feature = np.concatenate([tree.feature for tree in trees])
        # A leaf leads to itself, so that all trees may be walked as far down as the deepest of them.
        leaf, own = feature < 0, np.arange(starts[-1])
        left = np.concatenate([tree.children_left + start for tree, start in zip(trees, starts, strict=False)])
        right = np.concatenate([tree.children_right + start for tree, start in zip(trees, starts, strict=False)])
        self._left, self._right = np.where(leaf, own, left), np.where(leaf, own, right)
        self._feature = np.where(leaf, 0, feature)
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._value = np.concatenate([tree.value[:, 0, 0] for tree in trees])
        self._depth = max(tree.max_depth for tree in trees)

    def values(self, row: np.ndarray) -> np.ndarray:
        """What each tree says of one row of numbers; shape (trees,)."""
        numbers = row.astype(np.float32)  # as the trees were grown
        at = self._roots
        for _ in range(self._depth):
            at = np.where(numbers[self._feature[at]] <= self._threshold[at], self._left[at], self._right[at])
        return self._value[at]
