"""A Gaussian process for the runs of one program: a trend in the logarithms, and what bends away from it.

Costs of training are products of powers of sizes over wide ranges, and sums of such products at their ends. In
logarithms that is a plane which bends slowly, so that some ten runs already say much. Each column has a weight of its
own, found by maximising the posterior density of what was measured: columns that say nothing are faded out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize

LEAST_RUNS = 5  # of a program before its columns are weighed
MOST_RUNS = 240  # the newest of a program; the time of a fit grows with the cube
MOST_SEARCHED = 80  # of those, evenly, for finding the weights
_SPREAD = 2.0  # standard deviation of the logarithm of a weight, a priori
_BENDING = 0.4  # how quickly the bending part changes with a column, relative to the column's weight in the trend
_JITTER = 1e-8
_FURTHEST = 5.0  # standard deviations of what was measured that a prediction may lie from its mean
_USUAL = (0.0, -2.0, -3.0)  # logarithms of the trend's, the bend's and the noise's part of the variance, a priori


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process. Made by :func:`fit`.

    Attributes:
        left_out: For each run it was fitted to, its value minus what the others predict for it; shape (runs,).
        left_out_std: The standard deviation of that prediction; shape (runs,).
    """

    _x: np.ndarray
    _weights: np.ndarray  # of each number of a row
    _trend: float
    _bend: float
    _noise: float
    _mean: float
    _scale: float
    _alpha: np.ndarray
    _inverse: np.ndarray
    _furthest: float
    left_out: np.ndarray
    left_out_std: np.ndarray

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What to expect of further runs.

        Args:
            x: Rows of numbers; shape (runs, width).

        Returns:
            (mean, standard deviation of the next measurement), both of shape (runs,).
        """
        cross = _kernel(x, self._x, self._weights, self._trend, self._bend)
        own = self._trend * (1.0 + (x * x) @ self._weights) + self._bend + self._noise
        variance = own - ((cross @ self._inverse) * cross).sum(axis=1)
        away = cross @ self._alpha
        # A plane that few runs have tilted leads anywhere: no further than this from what was measured.
        away = np.clip(away, -self._furthest, self._furthest)
        return self._mean + away, self._scale * np.sqrt(np.maximum(variance, self._noise))

    def left_out_density(self) -> float:
        """The logarithm of the density of each run's value as the others predict it, summed."""
        squares = (self.left_out / self.left_out_std) ** 2
        return float(-0.5 * squares.sum() - np.log(self.left_out_std).sum())

    def relevance(self, groups: np.ndarray) -> np.ndarray:
        """How much each column matters: the spread of the trend over its values, as shares of 1; shape (columns,)."""
        spread = np.sqrt(self._weights) * self._x.std(axis=0)
        slope = np.abs(self._trend * self._weights * (self._x.T @ self._alpha)) * self._x.std(axis=0)
        shares = np.bincount(groups, slope + 1e-3 * spread, minlength=int(groups.max(initial=-1)) + 1)
        return shares / max(float(shares.sum()), 1e-12)

    def nearest(self, x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Which of the runs are most like one run: (their indices, distances from it), nearest first."""
        away = np.sqrt((((self._x - x) ** 2) @ self._weights) * 1.0)
        order = np.argsort(away, kind="stable")[:most]
        return order, away[order]


def fit(x: np.ndarray, y: np.ndarray, groups: np.ndarray, *, usual_spread: float = 1.0) -> GaussianProcess:
    """Fit a process. Fewer than :data:`LEAST_RUNS` runs do not tell the weights: all columns then have the same.

    Args:
        x: One row of numbers for each run, columns scaled to a spread of about 1; shape (runs, width).
        y: What was measured, usually as logarithms; shape (runs,).
        groups: Which column each number of a row belongs to; shape (width,).
        usual_spread: Standard deviation of ``y`` in programs of many runs; it stands in where there are few.
    """
    few = len(y) < LEAST_RUNS
    columns = int(groups.max(initial=-1)) + 1
    mean = float(np.mean(y))
    spread = usual_spread if few else float(max(np.std(y), 1e-6))
    target = (y - mean) / spread
    found = np.concatenate([np.full(columns, -np.log(max(columns, 1))), _USUAL])
    if not few:
        found = _search(x, target, groups, found)
    weights = np.exp(found[:columns])[groups]
    trend, bend, noise = (float(value) for value in np.exp(found[columns:]))
    covariance = _kernel(x, x, weights, trend, bend)
    inverse, _ = _inverse(covariance, noise)
    alpha = inverse @ target
    diagonal = np.diag(inverse)
    # The scale that makes the prediction of each run from the others as wrong as it says it is.
    left_out = alpha / diagonal
    # Not 0 where all measured the same: nothing would be left to divide an error by.
    scale = 1.0 if few else float(max(np.sqrt(np.mean(left_out**2 * diagonal)), 1e-3))
    return GaussianProcess(
        x,
        weights,
        trend,
        bend,
        noise,
        mean,
        scale * spread,
        alpha * spread,
        inverse,
        _FURTHEST * spread,
        left_out * spread,
        scale * spread / np.sqrt(diagonal),
    )


def _search(x: np.ndarray, y: np.ndarray, groups: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The logarithms of weights, trend, bend and noise of the largest posterior density."""
    columns = len(start) - len(_USUAL)
    some = np.unique(np.linspace(0, len(y) - 1, min(len(y), MOST_SEARCHED)).astype(int))
    found = minimize(
        _loss,
        start,
        args=(x[some], y[some], groups, start),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-9.0, 5.0)] * columns + [(-4.0, 5.0), (-9.0, 3.0), (-11.0, 1.0)],
        options={"maxiter": 60},
    )
    return np.asarray(found.x)


def _kernel(a: np.ndarray, b: np.ndarray, weights: np.ndarray, trend: float, bend: float) -> np.ndarray:
    product = (a * weights) @ b.T
    squares = ((a * a) @ weights)[:, None] + ((b * b) @ weights)[None, :] - 2 * product
    return trend * (1.0 + product) + bend * np.exp(-_BENDING * np.maximum(squares, 0.0))


def _inverse(covariance: np.ndarray, noise: float) -> tuple[np.ndarray, float]:
    """The inverse of a covariance, which is overwritten, with noise; and half the logarithm of its determinant.

    LAPACK's own functions: what is around them in scipy.linalg takes longer than they do for the runs of a program.

    Raises:
        numpy.linalg.LinAlgError: It is not positive definite.
    """
    covariance.flat[:: len(covariance) + 1] += noise + _JITTER
    factor, wrong = lapack.dpotrf(covariance.T, lower=1, overwrite_a=1)
    if wrong:
        raise np.linalg.LinAlgError("not positive definite")
    lower, _ = lapack.dpotri(factor, lower=1)
    return lower + np.tril(lower, -1).T, float(np.log(factor.diagonal()).sum())


def _loss(
    logs: np.ndarray, x: np.ndarray, y: np.ndarray, groups: np.ndarray, centre: np.ndarray
) -> tuple[float, np.ndarray]:
    """Negative logarithm of the posterior density, and its gradient."""
    columns = len(logs) - 3
    weights = np.exp(logs[:columns])[groups]
    trend, bend, noise = np.exp(logs[columns:])
    product = (x * weights) @ x.T
    norms = np.diag(product)
    bent = bend * np.exp(-_BENDING * np.maximum(norms[:, None] + norms[None, :] - 2 * product, 0.0))
    covariance = trend * (1.0 + product) + bent
    try:
        inverse, half_log = _inverse(covariance.copy(), noise)
    except np.linalg.LinAlgError:
        return 1e10, np.zeros_like(logs)
    alpha = inverse @ y
    away = (logs - centre) / _SPREAD
    value = 0.5 * y @ alpha + half_log + 0.5 * away @ away
    inner = 0.5 * (inverse - np.outer(alpha, alpha))  # half of d(value)/d(covariance)
    # By weight: the trend's x xᵀ, and the bent part's squared distances, both of one number of the rows at a time.
    by_bent = inner * bent
    rows = by_bent.sum(axis=1)
    of_trend = (x * (inner @ x)).sum(axis=0) * trend
    of_bent = -2 * _BENDING * (rows @ (x * x) - (x * (by_bent @ x)).sum(axis=0))
    gradient = np.empty_like(logs)
    gradient[:columns] = np.bincount(groups, weights * (of_trend + of_bent), minlength=columns)
    gradient[columns:] = (
        (inner * (covariance - bent)).sum(),
        by_bent.sum(),
        noise * np.trace(inner),
    )
    return float(value), gradient + away / _SPREAD
