"""What other programs say of a program's throughput before much of it was tried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares

from prefect_gpu.estimation.throughput.setups import Columns, Setup, Tried, merged, usual_batch
from prefect_gpu.estimation.throughput.step_time import KINDS, SHAPE, TIME, log_step_time, slopes

MISFIT = 0.07  # how far real programs are from the form, as a standard deviation of logarithms
REMOTE_MISFIT = 0.12  # further, over several nodes: networks have their own ideas
NOISE = 0.03  # how far one measurement of a rate is from the next, likewise
# The shape before anything is known: a twelfth of the step is fixed, two GPUs of a node synchronise in as long, two
# nodes in three times that; both grow like the cube root, and little overlaps. All within a factor of about 12 (90 %).
_SHAPE = (-2.5, -2.5, -1.0, -1.5, -1.0, 0.7)
_SHAPE_STD = (1.5, 1.5, 1.0, 1.5, 1.0, 0.7)
_TIME_STD = 4.0
_KIND_STD = 0.35  # how much the same two kinds differ from program to program
_NEW_KIND_STD = 0.8  # how much a kind of which nothing is known differs from others
_OWN_WEIGHT = 3.0  # what is assumed counts as so many programs


@dataclass(frozen=True)
class Prior:
    """What is known of programs in general. All are logarithms.

    Attributes:
        shape: Of the parameters of the form but the time itself.
        shape_std: How much programs differ in them.
        kinds: How long a step takes on a kind of GPU, relative to the mean of the kinds.
        kind_std: How much programs differ in that.
        programs: How many programs it was learned from.
    """

    shape: tuple[float, ...] = _SHAPE
    shape_std: tuple[float, ...] = _SHAPE_STD
    kinds: Mapping[str | None, float] = field(default_factory=dict)
    kind_std: float = _KIND_STD
    programs: int = 0


NO_PRIOR = Prior()


@dataclass(frozen=True)
class Fitted:
    """The parameters of one program.

    Attributes:
        parameters: As of :mod:`~prefect_gpu.estimation.throughput.step_time`; shape (parameters,).
        covariance: Of the parameters; shape (parameters, parameters).
        gained: By parameter, how much of the prior's variance the program's own measurements took away, 0 to 1.
        scale: How much further from the form this program is than usual; 1: as usual.
        residuals: Logarithms of the measured step times minus the form's; shape (tried,).
    """

    parameters: np.ndarray
    covariance: np.ndarray
    gained: np.ndarray
    scale: float
    residuals: np.ndarray


def centre(prior: Prior, kinds: Mapping[str | None, int]) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the parameters a priori, with the kinds in the order of their indices."""
    known = [prior.kinds.get(kind, 0.0) for kind in kinds]
    spread = [prior.kind_std if kind in prior.kinds else _NEW_KIND_STD for kind in kinds]
    return np.array([0.0, *prior.shape, *known]), np.array([_TIME_STD, *prior.shape_std, *spread])


def fit(tried: Sequence[Tried], kinds: Mapping[str | None, int], columns: Columns, prior: Prior) -> Fitted:
    """The parameters of the largest posterior density, and how sure they are (Laplace's approximation)."""
    mean, std = centre(prior, kinds)
    measured = -np.log([one.steps_per_s for one in tried])
    noise = np.sqrt(misfit_variance(columns) + NOISE**2 / np.array([one.runs for one in tried]))
    start = mean.copy()
    if tried:
        start[TIME] = mean[TIME] = float(np.mean(measured - log_step_time(mean, columns)))

    def away(parameters: np.ndarray) -> np.ndarray:
        return np.concatenate([(log_step_time(parameters, columns) - measured) / noise, (parameters - mean) / std])

    def jacobian(parameters: np.ndarray) -> np.ndarray:
        return np.vstack([slopes(parameters, columns)[1] / noise[:, None], np.diag(1 / std)])

    found = least_squares(away, start, jac=jacobian, method="lm", max_nfev=100).x if tried else start
    at, derivatives = slopes(found, columns)
    residuals = measured - at
    # Four measurements' worth of trust in the usual misfit, so that three points cannot claim to fit exactly.
    scale = float(np.sqrt((np.sum((residuals / noise) ** 2) + 4.0) / (0.5 * len(tried) + 4.0)))
    weighted = derivatives / (scale * noise[:, None])
    covariance = np.linalg.inv(weighted.T @ weighted + np.diag(std**-2.0))
    gained = np.clip(1.0 - np.diag(covariance) / std**2, 0.0, 1.0)
    return Fitted(found, covariance, gained, scale, residuals)


def misfit_variance(columns: Columns) -> np.ndarray:
    """How far a usual program is from the form, as variances of logarithms; shape (setups,)."""
    return np.where(columns.nodes > 1, MISFIT**2 + REMOTE_MISFIT**2, MISFIT**2)


def learn_prior(programs: Iterable[Sequence[Tried]]) -> Prior:
    """What programs have in common.

    A program counts for each parameter as much as its own measurements tell of it: one that was only tried on one GPU
    says nothing about synchronising.

    Args:
        programs: What was tried of each of them. Their order does not matter, but for rounding.
    """
    fits: list[tuple[Fitted, dict[str | None, int]]] = []
    for program in programs:
        tried = merged(program)
        if tried:
            kinds, columns = in_columns([one.setup for one in tried])
            fits.append((fit(tried, kinds, columns, NO_PRIOR), kinds))
    if not fits:
        return NO_PRIOR
    shapes = np.array([one.parameters[SHAPE] for one, _ in fits])
    weights = np.array([one.gained[SHAPE] for one, _ in fits])
    assumed, assumed_std = np.array(_SHAPE), np.array(_SHAPE_STD)
    total = weights.sum(axis=0) + _OWN_WEIGHT
    shape = ((weights * shapes).sum(axis=0) + _OWN_WEIGHT * assumed) / total
    spread = (weights * (shapes - shape) ** 2).sum(axis=0) + _OWN_WEIGHT * assumed_std**2
    times, kind_std = _kinds([{kind: float(one.parameters[KINDS + at]) for kind, at in of.items()} for one, of in fits])
    return Prior(tuple(shape.tolist()), tuple(np.sqrt(spread / total).tolist()), times, kind_std, len(fits))


def in_columns(
    setups: Sequence[Setup], more: Iterable[str | None] = (), batch: float | None = None
) -> tuple[dict[str | None, int], Columns]:
    """Indices of the kinds that occur (and ``more``), and the setups in columns."""
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys([*(setup.kind for setup in setups), *more]))}
    return kinds, Columns.of(setups, kinds, batch or usual_batch(setups))


def _kinds(times: Sequence[Mapping[str | None, float]]) -> tuple[dict[str | None, float], float]:
    """Kinds' times from programs that were tried on several: time = the program's + the kind's, by least squares."""
    several = [of for of in times if len(of) > 1]
    names = sorted({kind for of in several for kind in of}, key=lambda kind: (kind is None, kind or ""))
    if not names:
        return {}, _KIND_STD
    rows, values = [], []
    for of in several:
        mean = sum(of.values()) / len(of)
        for kind, time in of.items():
            row = [-1.0 / len(of) if name in of else 0.0 for name in names]
            row[names.index(kind)] += 1.0
            rows.append(row)
            values.append(time - mean)
    ridge = 0.1 * np.eye(len(names))
    found = np.linalg.lstsq(np.vstack([rows, ridge]), np.concatenate([values, np.zeros(len(names))]), rcond=None)[0]
    left = np.asarray(values) - np.asarray(rows) @ found
    free = sum(len(of) - 1 for of in several)
    std = np.sqrt((np.sum(left**2) + _OWN_WEIGHT * _KIND_STD**2) / (free + _OWN_WEIGHT))
    return dict(zip(names, found.tolist(), strict=True)), float(std)
