"""Whose fault it is that an allocation ran out of main memory, as far as that can be told.

Slurm ends the allocation, or the kernel ends something in it, and nobody says which run had taken too much. A run that
was alone was it. Of several, each may have been; those that are innocent should not end with the other one. So they
carry on, but not again and again: who has been there each time it happened, is given up.
"""

from __future__ import annotations

from collections import Counter

MOST = 2
"""So many allocations may run out of memory around a run that shares them with others."""


class Suspects:
    """Counts how often memory ran out around each run, as long as this worker serves."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def guilty(self, runs: frozenset[str], *, alone: bool) -> frozenset[str]:
        """Memory ran out where these runs were.

        Args:
            alone: Whether nothing else is known to have been there.

        Returns:
            Those that are not to carry on by themselves.
        """
        self._times.update(runs)
        return frozenset(run for run in runs if (alone and len(runs) == 1) or self._times[run] > MOST)
