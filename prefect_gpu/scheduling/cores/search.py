"""A search for the fewest cores with which a run does as well as it can, one measurement after the other."""

from __future__ import annotations

import abc
import math


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
