"""Statistical efficiency: what a step with a larger batch brings, from the gradient's noise, and how that grows."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

_N = TypeVar("_N", float, np.ndarray)


def gain(sqr: _N, var: _N, scale: _N) -> _N:
    """How many steps of the initial batch size a step brings whose batch is ``scale`` times as large (AdaScale).

    Args:
        sqr: Squared norm of the true gradient.
        var: Variance of the gradient of one initial batch.
        scale: Batch size over initial batch size.
    """
    return (var + sqr) / (var / scale + sqr)


class Noise:
    """var / sqr of one program by epoch, from all runs that have reported it; it tends to grow while a run trains.

    Args:
        epochs: How many the program trains for.
    """

    def __init__(self, epochs: int) -> None:
        self._logs = np.full(epochs, math.nan)
        self._counts = np.zeros(epochs, dtype=int)
        self.version = 0
        """Counts the changes that matter: an epoch seen for the first time, or as often again as before."""

    def report(self, epoch: int, sqr: float, var: float) -> None:
        """A run measured this in an epoch; what is not positive says nothing."""
        if not (sqr > 0 and var > 0):
            return
        count = self._counts[epoch] = self._counts[epoch] + 1
        log = math.log(var / sqr)
        self._logs[epoch] = log if count == 1 else self._logs[epoch] + (log - self._logs[epoch]) / count
        if count & (count - 1) == 0:
            self.version += 1

    def by_epoch(self) -> np.ndarray:
        """var / sqr in each epoch; shape (epochs,).

        Beyond what anybody has reached it is assumed to grow in proportion to the epochs. Before any report it is 1:
        then a batch of twice the size brings a third more.
        """
        seen = np.flatnonzero(self._counts)
        if not len(seen):
            return np.ones(len(self._logs))
        epochs = np.arange(len(self._logs))
        ahead = np.maximum(np.log((epochs + 1) / (seen[-1] + 1)), 0.0)
        return np.asarray(np.exp(np.interp(epochs, seen, self._logs[seen]) + ahead))
