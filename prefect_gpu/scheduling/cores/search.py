"""How many cores does a training job need? CODA's search on how busy its GPUs are (§V.B), and ours on its step rate."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping

STEP_S = 90.0
"""How long each core count is measured."""

DEFAULT_CORES: Mapping[str, int] = {"cv": 3, "nlp": 5, "speech": 5}
"""Cores per GPU for a category of which its owner has no history."""

NOISE = 0.01
"""Differences in utilisation, 0 to 1, that say nothing."""

MOST_MEASUREMENTS = 4
"""Counts that are measured at most: as many as CODA reports for its search (§VI)."""

RATE_NOISE = 0.03
"""Part of the highest step rate by which another may be lower and still counts as the same."""


class CoreSearch(abc.ABC):
    """Asks for one count of cores after the other, and takes in what was measured with it.

    Args:
        start: Core count to begin with, N_start.
        most: Most cores that the run can be given.

    Attributes:
        best: The fewest cores known to do as well as the best.
        asked: The core count to measure next; None once the search is over.
        measurements: Counts measured so far.

    Raises:
        ValueError: The start is not within 1 to ``most``.
    """

    def __init__(self, start: int, most: int) -> None:
        if not 1 <= start <= most:
            raise ValueError(f"start is {start}, outside of 1 to most {most}: give 1 <= start <= most")
        self.best = self._start = start
        self.asked: int | None = start
        self.measurements = 0
        self._most = most

    def observe(self, cores: int, value: float, most: int | None = None) -> int | None:
        """Take a measurement and say which count to measure next; None once :attr:`best` is found.

        A measurement at another count than the one asked for changes nothing.

        Args:
            cores: Cores that the run had while it was measured.
            value: How well it did with them; the more the better.
            most: Most cores that the run can be given now; None: as many as ever.

        Raises:
            ValueError: The value is not a finite number of at least 0.
        """
        if not 0 <= value < math.inf:
            raise ValueError(f"value is {value}: give what was measured, a number of at least 0")
        if cores == self.asked:
            self.measurements += 1
            self.asked = self._next(cores, value, min(self._most, most or self._most))
        return self.asked

    @abc.abstractmethod
    def _next(self, cores: int, value: float, most: int) -> int | None:
        """Note the value, and the best count; say which count to measure next."""


class CoreHistory:
    """What finished jobs needed, by owner and category: the start of the next job's search, N_start.

    Counts are kept per GPU, so that a job of four GPUs says something about one of one. Jobs that span nodes say
    nothing here: they need two cores at most, as they wait for the network (§IV.B).

    Attributes:
        needs: Cores that were found for running jobs, by job.
    """

    def __init__(self) -> None:
        self.needs: dict[str, int] = {}
        self._largest: dict[tuple[str, str | None], int] = {}

    def finished(self, owner: str, category: str | None, cores: int, gpus: int) -> None:
        """Learn from a job on one node that has ended, with the cores that it was tuned to."""
        per_gpu = math.ceil(cores / gpus)
        # The owner's largest over all categories serves jobs of no known category.
        for key in {(owner, _normal(category)), (owner, None)}:
            self._largest[key] = max(per_gpu, self._largest.get(key, 0))

    def start(self, owner: str, category: str | None, gpus: int = 1) -> int:
        """N_start: cores to begin with.

        The largest count of the owner's earlier jobs of the category, else the default of the category; a job of no
        known category starts from all of the owner's jobs, else from the largest default (fewer is tried first).

        Args:
            gpus: GPUs on its node.
        """
        known = _normal(category)
        per_gpu = self._largest.get((owner, known))
        if per_gpu is None:
            per_gpu = DEFAULT_CORES.get(known or "", max(DEFAULT_CORES.values()))
        return per_gpu * gpus


def _normal(category: str | None) -> str | None:
    return category.strip().lower() or None if category else None


class CoreTuner(CoreSearch):
    """Searches the core count at which a job's GPU utilisation is highest, one measurement of 90 s at a time.

    Fewer cores first; while they do not hurt, fewer still. If the first reduction hurt, more cores, while they help.
    Utilisation rises linearly up to the optimum and hardly falls beyond it, so fewer cores at the same utilisation
    count as an improvement: the cores are free for others. (The paper asks for a rise.)

    Args:
        start: Core count to begin with, N_start.
        most: Most cores that the job can be given.
        step: Cores by which a step changes the count; a job of several GPUs changes by one per GPU.

    Example:
        >>> tuner = CoreTuner(start=3, most=16)
        >>> tuner.observe(3, 0.50), tuner.observe(2, 0.33), tuner.observe(4, 0.66), tuner.observe(5, 0.65)
        (2, 4, 5, None)
        >>> tuner.best
        4
    """

    def __init__(self, start: int, most: int, step: int = 1) -> None:
        super().__init__(start, most)
        if step < 1:
            raise ValueError(f"step is {step}: give at least 1 core")
        self._step = step
        self._highest: float | None = None

    def _next(self, cores: int, value: float, most: int) -> int | None:
        """The paper's search does not look at how many cores are free now."""
        highest = self._highest
        if highest is None:
            self._highest = value
            return self._fewer(cores) or self._more(cores)
        if cores < self._start:
            # Against the highest seen, not the last one: many small losses must not add up.
            if value >= highest - NOISE:
                self.best, self._highest = cores, max(value, highest)
                return self._fewer(cores)
            # Fewer cores hurt. If they had helped before, the best is found; else try more.
            return self._more(self._start) if self.best == self._start else None
        if value > highest + NOISE:
            self.best, self._highest = cores, value
            return self._more(cores)
        return None

    def _fewer(self, cores: int) -> int | None:
        return max(1, cores - self._step) if cores > 1 else None

    def _more(self, cores: int) -> int | None:
        return min(self._most, cores + self._step) if cores < self._most else None


class KneeTuner(CoreSearch):
    """Searches the knee of a run's step rate over its cores.

    The step rate rises about linearly with the cores up to the knee, and hardly changes beyond it (§IV.B). So half as
    many cores are tried first, twice as many next, and then the count at which the line through the lower of the two
    points around the knee reaches the upper one: fewer measurements than by CODA's search, core by core.

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
        enough = max(self._rates.values()) * (1 - RATE_NOISE)
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
        return self._rates[self.best] / self.best >= (1 - RATE_NOISE) * self._rates[below] / below
