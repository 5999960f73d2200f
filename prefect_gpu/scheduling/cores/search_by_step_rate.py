"""Finds the fewest cores with which a run trains as fast as it can, from its step rate, in few large strides."""

from __future__ import annotations

import math

from prefect_gpu.scheduling.cores.search import CoreSearch

MOST_MEASUREMENTS = 4
"""Counts that are measured at most: as many as CODA reports for its search (§VI)."""

NOISE = 0.03
"""Part of the highest step rate by which another may be lower and still counts as the same."""


class KneeTuner(CoreSearch):
    """Searches the knee of a run's step rate over its cores.

    The step rate rises about linearly with the cores up to the knee, and hardly changes beyond it (§IV.B). So half as
    many cores are tried first, twice as many next, and then the count at which the line through the lower of the two
    points around the knee reaches the upper one. CODA's own search goes on core by core, which takes as many
    measurements as its start is away from the knee; on a GPU's use, :class:`.CoreTuner` does just that.

    Example:
        >>> tuner = KneeTuner(start=4, most=16)
        >>> [tuner.observe(cores, min(cores, 6) * 10.0) for cores in (4, 2, 8, 6)]
        [2, 8, 6, None]
        >>> tuner.best
        6
    """

    def __init__(self, start: int, most: int) -> None:
        super().__init__(start, most)
        self._rates: dict[int, float] = {}

    def _next(self, cores: int, value: float, most: int) -> int | None:
        self._rates[cores] = value
        enough = max(self._rates.values()) * (1 - NOISE)
        self.best = min(count for count, seen in self._rates.items() if seen >= enough)
        if len(self._rates) >= MOST_MEASUREMENTS:
            return None
        below = max((count for count in self._rates if count < self.best), default=None)
        if below is None and self.best > 1:
            return self.best // 2
        if max(self._rates) == self.best < most and (self.best == self._start or self._linear(below)):
            return min(most, 2 * self.best)
        if below is None:
            return None
        knee = math.ceil(below * self._rates[self.best] / self._rates[below] * (1 - 1e-9))
        knee = min(max(knee, below + 1), self.best - 1)
        return knee if knee > below else None

    def _linear(self, below: int | None) -> bool:
        """Whether the rate still rises in proportion up to the best count."""
        if below is None:
            return True
        return self._rates[self.best] / self.best >= (1 - NOISE) * self._rates[below] / below
