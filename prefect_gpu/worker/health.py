"""Whether a restart would help the worker: what Prefect's health check asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_gpu.worker.session import PoolSession

STANDSTILL_S = 30.0
_ROUNDS = 30  # of looks at the pool, as Prefect has it
_LONGEST_LOOK_S = 300.0  # Prefect's client repeats a request that fails for minutes, and one of a look is among them


class Health:
    """Follows the signs of life of one worker.

    Args:
        clock: Monotonic seconds; tests may replace it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turned_at = self._looked_at = clock()

    async def turn(self) -> None:
        """Show that the event loop turns, until cancelled."""
        while True:
            self._turned_at = self._clock()
            await asyncio.sleep(1.0)

    def looked(self) -> None:
        """The pool is looked at, or the worker stands by."""
        self._looked_at = self._clock()

    def wrong(self, session: PoolSession, look_every_s: float) -> list[str]:
        """What a restart may help against; may be asked in any thread. That Prefect is away is nothing of that kind."""
        now = self._clock()
        wrong = [*session.ill()]
        if now - self._turned_at > STANDSTILL_S:
            wrong.append(f"its event loop has stood still for {now - self._turned_at:.0f} s")
        elif min(now - self._looked_at, session.well_s) > max(_ROUNDS * look_every_s, _LONGEST_LOOK_S):
            wrong.append(f"it has not looked at the pool for {now - self._looked_at:.0f} s, although Prefect answers")
        return wrong
