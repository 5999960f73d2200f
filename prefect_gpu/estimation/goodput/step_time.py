"""How long a step takes on any GPUs and any batch: the seven parameters of Pollux (Qiao et al., 2021, §3.2), fitted.

compute = a + b · local batch; network = c + d · max(GPUs − 2, 0), with a pair of (c, d) within a node and another one
between nodes; step = (compute^g + network^g)^(1/g).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import least_squares

_NOISE = 0.03  # how far one measurement is from the form, as a standard deviation of logarithms
_STD = 1.5  # how little is known of a parameter before anything was measured, likewise
_SURPRISE = 0.03  # what was measured and is so far from what was expected calls for another fit
# Relative to what a GPU computes per step: half of that is fixed; a network within a node takes a twentieth of it, one
# between nodes a fifth, and a hundredth more for each GPU; half overlaps.
_PRIOR = np.log([0.5, 0.5, 0.2, 0.01, 0.05, 0.01, 0.5])
_LEAST = 1e-9


class StepTime:
    """The step time of one program, from what all of its runs have measured.

    Deterministic. A fit takes some milliseconds; it is made when a prediction is asked for and the last one was wrong.
    """

    def __init__(self) -> None:
        self._measured: dict[tuple[int, int, int], tuple[float, float]] = {}
        self._parameters = _PRIOR
        self._stale = False
        self.version = 0
        """Counts the changes of what is predicted."""

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._measured)

    def report(self, nodes: int, gpus: int, local: int, step_s: float, sync_s: float | None) -> None:
        """A step took so long, and so much of it was waiting for the network (None: unknown); a setup counts once."""
        key = (nodes, gpus, local)
        if key in self._measured or not step_s > (sync_s or 0.0):
            return
        self._measured[key] = step_s, math.nan if sync_s is None else step_s - sync_s
        if not self._stale:
            expected = [of[0] for of in self.predict(nodes, gpus, np.array([local]))]
            off = np.nanmax(np.abs(np.log(self._measured[key]) - np.log(expected)))
            self._stale = len(self._measured) == 1 or bool(off > _SURPRISE)
            self.version += self._stale

    def predict(
        self, nodes: int | np.ndarray, gpus: int | np.ndarray, local: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of a step, and of its computing, with so many samples per GPU; both of the shape of ``local``."""
        if self._stale:
            self._fit()
        step, compute = _form(self._parameters, np.asarray(nodes), np.asarray(gpus), local)
        return step, compute

    def _fit(self) -> None:
        nodes, gpus, local = np.array(list(self._measured)).T
        measured = np.log(np.array(list(self._measured.values())))
        known = ~np.isnan(measured[:, 1])
        compute = np.where(known, measured[:, 1], measured[:, 0]).mean()
        mean = _PRIOR + compute
        mean[1] -= np.log(local).mean()
        mean[6] = _PRIOR[6]
        weight = 1 / _NOISE

        def away(parameters: np.ndarray) -> np.ndarray:
            step, alone = _form(parameters, nodes, gpus, local)
            return np.concatenate(
                [
                    (np.log(step) - measured[:, 0]) * weight,
                    ((np.log(alone) - measured[:, 1]) * weight)[known],
                    (parameters - mean) / _STD,
                ]
            )

        start = mean if self._parameters is _PRIOR else self._parameters
        self._parameters = least_squares(away, start, method="lm", max_nfev=200).x
        self._stale = False


def _form(
    parameters: np.ndarray, nodes: np.ndarray, gpus: np.ndarray, local: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of steps, and of their computing; the parameters are logarithms, the last one of g − 1."""
    fixed, each, between, between_each, within, within_each, overlap = np.exp(np.clip(parameters, -40, 40))
    power = 1 + min(overlap, 9.0)
    compute = fixed + each * local
    many = np.maximum(gpus - 2, 0)
    network = np.where(
        nodes > 1, between + between_each * many, np.where(gpus > 1, within + within_each * many, _LEAST)
    )
    return (compute**power + network**power) ** (1 / power), compute
