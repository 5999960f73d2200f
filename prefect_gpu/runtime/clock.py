"""The worker's time, which nobody sets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from prefect_gpu.runtime.drivers import supervisor


class Clock:
    """Counts seconds from what the machine's clock showed when it was made, whatever that is set to afterwards.

    So every difference of two of its times is a duration. While the machine is suspended it stands still, as all that
    it is meant to measure does. Times of the world, those of Prefect and of files say, must be brought to it by
    :meth:`of` and back by :meth:`unix`.

    Args:
        wall: Unix seconds, as the machine shows them.
        steady: Seconds from the machine's start that are never set, and the same in all processes.

    Example:
        >>> shown, passed = 5000.0, 10.0
        >>> clock = Clock(lambda: shown, lambda: passed)
        >>> shown, passed = 1402.0, 12.0    # two seconds later, and an hour earlier by the machine's clock
        >>> clock(), clock.of(1401.0), clock.unix(5001.0)
        (5002.0, 5001.0, 1401.0)
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._zero = wall() - steady()  # its time when the machine started

    def __call__(self) -> float:
        """Now."""
        return self._zero + self._steady()

    @property
    def ahead_s(self) -> float:
        """How far it is ahead of the machine's clock, in whole milliseconds: two clocks cannot be read at once."""
        return round(self() - self._wall(), 3)

    def of(self, unix: float) -> float:
        """Its time of a moment that the machine's clock gives in Unix seconds."""
        return unix + self.ahead_s

    def unix(self, at: float) -> float:
        """One of its times in Unix seconds, as the machine's clock has it now."""
        return at - self.ahead_s

    @property
    def identity(self) -> dict[str, Any]:
        """What a later worker must know to understand its times: which start of the machine, and its time then."""
        return {"boot": supervisor.boot_id(), "zero": self._zero}

    def after(self, earlier: object) -> float:
        """Seconds to add to the times of an earlier worker's clock with that identity; else: the machine's clock."""
        match earlier:
            case {"boot": str(boot), "zero": float(zero)} if boot and boot == self.identity["boot"]:
                return round(self._zero - zero, 3)
        return 0.0


CLOCK = Clock()
"""The clock of this process."""
