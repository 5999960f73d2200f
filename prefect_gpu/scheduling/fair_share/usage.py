"""What each owner has had, and what it was owed meanwhile: device-seconds that count less the longer ago they are."""

from __future__ import annotations

import math
from collections.abc import Mapping

_FORGOTTEN = 1e-3  # device-seconds


class Usage:
    """Two sums an owner, which lose half of their weight in each half-life.

    Both are kept because they are compared: an owner that had nothing while it asked for nothing is owed nothing for
    that time, and one that used devices which nobody else wanted has not taken them from anybody.

    Attributes:
        had: By owner: device-seconds that it held.
        owed: By owner: device-seconds that it was owed.
        at: The moment as of which; None: nothing was counted yet.
    """

    def __init__(self) -> None:
        self.had: dict[str, float] = {}
        self.owed: dict[str, float] = {}
        self.at: float | None = None

    def pass_time(self, holds: Mapping[str, float], owed: Mapping[str, float], now: float, half_life_s: float) -> None:
        """Until now, owners held and were owed so many devices.

        Time that goes backwards counts as none.
        """
        passed_s = 0.0 if self.at is None else max(0.0, now - self.at)
        self.at = now if self.at is None else max(now, self.at)
        if not passed_s:
            return
        kept = 2.0 ** (-passed_s / half_life_s)
        weight = half_life_s / math.log(2.0) * (1.0 - kept)  # the integral of what one device's seconds count
        self.had = _passed(self.had, holds, kept, weight)
        self.owed = _passed(self.owed, owed, kept, weight)

    def remembered(self, had: Mapping[str, float], owed: Mapping[str, float], now: float) -> None:
        """So much it was until now, as others have counted."""
        self.had, self.owed, self.at = dict(had), dict(owed), now

    def behind(self, owner: str) -> float:
        """Device-seconds that an owner has had too little; negative: too many."""
        return self.owed.get(owner, 0.0) - self.had.get(owner, 0.0)


def _passed(sums: Mapping[str, float], now: Mapping[str, float], kept: float, weight: float) -> dict[str, float]:
    names = dict.fromkeys((*sums, *now))
    found = {name: sums.get(name, 0.0) * kept + now.get(name, 0.0) * weight for name in names}
    return {name: number for name, number in found.items() if number > _FORGOTTEN}
