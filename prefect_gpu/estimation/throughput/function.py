"""f_M(R) of one program: steps per second on any resources, with an interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from prefect_gpu.estimation.runs import Interval
from prefect_gpu.estimation.throughput.prior import NO_PRIOR, NOISE, Prior, fit, in_columns, misfit_variance
from prefect_gpu.estimation.throughput.setups import Columns, Setup, Tried, merged, usual_batch
from prefect_gpu.estimation.throughput.step_time import slopes

CAUTIOUS = 0.25  # the quantile of the rate that is handed to the scheduler
_NINE_IN_TEN = NormalDist().inv_cdf(0.95)  # standard deviations to either side
_NEAR = 1.0  # a measurement corrects the form at setups up to about so many doublings away
_WIDEST = 20.0  # standard deviation of a logarithm: wider than any ignorance of a rate


class Throughput:
    """F-scheduling's function of one program (Seo, 2020, §3.1), from the setups that were tried.

    A form of the step time (:mod:`~prefect_gpu.estimation.throughput.step_time`) is fitted to what was tried, and
    what is left over corrects it near by, so that it passes through or close to what was measured. Where little was
    tried, other programs stand in (the prior) and the interval is wide. No rate is more than linear in the GPUs.

    Deterministic. A fit takes milliseconds, a prediction less than one.

    Args:
        tried: What was measured, oldest first; setups may occur more than once. Leave out what did not run.
        prior: From :func:`learn_prior`.
    """

    def __init__(self, tried: Iterable[Tried] = (), prior: Prior = NO_PRIOR) -> None:
        self.tried: tuple[Tried, ...] = tuple(merged(tried))
        self.prior = prior
        setups = [one.setup for one in self.tried]
        self._usual_batch = usual_batch(setups)
        # A kind that nobody has seen has a place of its own, so that its uncertainty is carried along.
        self._kinds, self._columns = in_columns(setups, [*prior.kinds, "\0new"], self._usual_batch)
        self._fitted = fit(self.tried, self._kinds, self._columns, prior)
        self._derivatives = slopes(self._fitted.parameters, self._columns)[1]
        covariance = self._near(self._columns)
        covariance[np.diag_indices_from(covariance)] += [NOISE**2 / one.runs for one in self.tried]
        self._inverse = np.linalg.inv(covariance)

    def predict(self, setup: Setup) -> Interval:
        """Steps per second on these resources, with an interval that is meant to hold in nine of ten cases.

        Without anything tried the scale itself is unknown: then the interval spans orders of magnitude.
        """
        return self.predict_all([setup])[0]

    def predict_all(self, setups: Sequence[Setup]) -> list[Interval]:
        """:meth:`predict` for many setups at once."""
        median, std = self.log_rates(setups)
        wide = _NINE_IN_TEN * std
        return [
            Interval(*map(_rate, rates))
            for rates in zip(median.tolist(), (median - wide).tolist(), (median + wide).tolist(), strict=True)
        ]

    def as_tuple(self, max_gpus: int, nodes: int = 1) -> tuple[float, ...]:
        """Steps per second on 1, 2, 3 … GPUs of nodes of the kind that was tried last, and with that batch.

        :class:`~prefect_gpu.scheduling.model.jobs.Estimate` has them so. It is a lower quantile: where it was tried
        that is close to the median, and where it is a guess, a GPU is not handed out for a speed-up that nothing shows.

        Args:
            max_gpus: Length of the tuple. It is empty if nothing was tried.
            nodes: On so many nodes; a single GPU is on one.
        """
        if not self.tried or max_gpus < 1:
            return ()
        setups = [
            replace(self.tried[-1].setup, gpus=count, nodes=min(count, nodes)) for count in range(1, max_gpus + 1)
        ]
        median, std = self.log_rates(setups)
        return tuple(_rate(rate) for rate in (median + NormalDist().inv_cdf(CAUTIOUS) * std).tolist())

    def log_rates(self, setups: Sequence[Setup]) -> tuple[np.ndarray, np.ndarray]:
        """Logarithms of steps per second, and how uncertain they are: (means, standard deviations)."""
        rates, std = self._corrected(setups)
        alone, _ = self._corrected([replace(setup, gpus=1, nodes=1) for setup in setups])
        # At most linear: in one GPU's rate, or in the rate per GPU that was seen with this kind and batch.
        best: dict[tuple[str | None, float | None], float] = {}
        for one in self.tried:
            key = (one.setup.kind, one.setup.batch_size)
            best[key] = max(best.get(key, -math.inf), math.log(one.steps_per_s / one.setup.gpus))
        each = [best.get((setup.kind, setup.batch_size), -math.inf) for setup in setups]
        return np.minimum(rates, np.maximum(alone, each) + np.log([setup.gpus for setup in setups])), std

    def _corrected(self, setups: Sequence[Setup]) -> tuple[np.ndarray, np.ndarray]:
        known = [s if s.kind in self._kinds else replace(s, kind="\0new") for s in setups]
        columns = Columns.of(known, self._kinds, self._usual_batch)
        at, derivatives = slopes(self._fitted.parameters, columns)
        cross = self._near(columns)
        weights = cross @ self._inverse
        moved = derivatives - weights @ self._derivatives
        left = self._fitted.scale**2 * (misfit_variance(columns) - (weights * cross).sum(axis=1)) + NOISE**2
        variance = np.einsum("ij,jk,ik->i", moved, self._fitted.covariance, moved) + np.maximum(left, NOISE**2)
        return -(at + weights @ self._fitted.residuals), np.minimum(np.sqrt(variance), _WIDEST)

    def _near(self, columns: Columns) -> np.ndarray:
        """Covariance of what the form leaves over, of setups with those that were tried; shape (setups, tried)."""
        apart = ((columns.logs[:, None, :] - self._columns.logs[None, :, :]) / _NEAR) ** 2
        same = columns.kinds[:, None] == self._columns.kinds[None, :]
        both = np.minimum(misfit_variance(columns)[:, None], misfit_variance(self._columns)[None, :])
        return np.asarray(both * np.exp(-0.5 * apart.sum(axis=2)) * same)


def _rate(log: float) -> float:
    return math.exp(min(max(log, -700.0), 700.0))  # what a float can hold
