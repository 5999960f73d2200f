"""How many cores does a training job need? CODA's CPU allocation (Zhao et al., 2020, §V.B), on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prefect_gpu.scheduling.cores.search import CoreSearch

STEP_S = 90.0
"""How long each core count is measured."""

DEFAULT_CORES: Mapping[str, int] = {"cv": 3, "nlp": 5, "speech": 5}
"""Cores per GPU for a category of which its owner has no history."""

NOISE = 0.01
"""Differences in utilisation, 0 to 1, that say nothing."""


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
