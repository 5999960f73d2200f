"""Programs that are better off one after the other than beside each other on a device, as it was measured."""

from __future__ import annotations

import math

LEAST_TOGETHER = 0.8
"""Two programs stay apart if their speeds beside each other, each divided by its speed alone, sum to less than this.

At a sum of 1 the two merely take turns: neither the device nor the last of them loses anything by it. Below 1 time is
lost to being together, and both would have ended sooner one after the other. What is asked for is clearly less than 1,
since speeds are measured over seconds.
"""


class Incompatible:
    """Remembers which pairs of programs slow each other down too much. A pair once found stays apart."""

    def __init__(self) -> None:
        self._slowdowns: dict[tuple[str, str], float] = {}
        self._pairs: set[frozenset[str]] = set()

    def learn(self, program: str, beside: str, slowdown: float) -> bool:
        """Take in the newest measurement of a pair.

        Args:
            program: Who was measured; runs of unknown programs, "", teach nothing.
            beside: The only other one on the device.
            slowdown: Its speed alone divided by its speed then.

        Returns:
            Whether the two are to stay apart.
        """
        if not program or not beside or not 0 < slowdown < math.inf:
            return False
        self._slowdowns[program, beside] = max(1.0, slowdown)
        other = self._slowdowns.get((beside, program))
        if other is not None and 1 / self._slowdowns[program, beside] + 1 / other < LEAST_TOGETHER:
            self._pairs.add(frozenset((program, beside)))
        return self.are(program, beside)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._pairs)

    def are(self, one: str, other: str) -> bool:
        """Whether two programs are to stay apart."""
        return bool(self._pairs) and frozenset((one, other)) in self._pairs
