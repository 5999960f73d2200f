"""The rule by which a run holds its devices for nothing: its use is low for long, or it never comes to a step.

First it is told; if nothing changes for as long again, others may share its devices; and after that time once more it
is stopped. How far this goes is the operator's choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stage = Literal["tell", "share", "stop"]
STAGES: tuple[Stage, ...] = ("tell", "share", "stop")


@dataclass(frozen=True)
class WasteRule:
    """What counts as waste, and what follows.

    Attributes:
        below: A use of its devices below this part, 0 to 1, is none.
        for_s: For so long it must have been so. Each further stage comes after as long again.
        up_to: The last stage; None: nobody looks.

    Raises:
        ValueError: A number is out of range.
    """

    below: float = 0.05
    for_s: float = 1800.0
    up_to: Stage | None = "tell"

    def __post_init__(self) -> None:
        if not 0 < self.below <= 1:
            raise ValueError(f"below={self.below} must be a part of a device, above 0 and at most 1, such as 0.05.")
        if not self.for_s > 0:
            raise ValueError(f"for_s={self.for_s} must be some seconds, such as 1800.")


class WasteWatch:
    """What is known of one run's use of its devices. Times are seconds of any one clock.

    Args:
        rule: What counts as waste.
        since: When the run got its devices; of one that was followed before, since when it does not use them.
        stepped: Whether it has come to train, or a step further.

    Example:
        >>> watch = WasteWatch(WasteRule(below=0.1, for_s=60.0), since=0.0)
        >>> watch.uses(0.02, at=50.0), watch.stage(59.0), watch.stage(61.0)
        (None, None, 'tell')
    """

    def __init__(self, rule: WasteRule, since: float, stepped: bool = False) -> None:
        self._rule, self._idle_since, self._stepped = rule, since, stepped
        self._use: float | None = None

    def excused(self, at: float) -> None:
        """Until now it could not use its devices, or did not have to: it waits for them, is paused, or saves."""
        self._idle_since, self._use = at, None

    def trains(self, at: float) -> None:
        """It begins to train: what it did before counts no more."""
        self._stepped = True
        self.excused(at)

    def steps(self, at: float) -> None:
        """It has come a step further. Where its use is not known, that is use enough."""
        self._stepped = True
        if self._use is None:
            self._idle_since = at

    def uses(self, part: float, at: float) -> None:
        """How much of its devices it used lately, 0 to 1."""
        self._use = part
        if part >= self._rule.below:
            self._idle_since = at

    @property
    def idle_since(self) -> float:
        """When it last used its devices, or was excused."""
        return self._idle_since

    def idle_s(self, now: float) -> float:
        """For how long it has not used its devices."""
        return max(0.0, now - self._idle_since)

    def stage(self, now: float) -> Stage | None:
        """How far things have come; None: nothing is wrong, or not for long enough."""
        if self._rule.up_to is None:
            return None
        passed = min(int(self.idle_s(now) / self._rule.for_s), STAGES.index(self._rule.up_to) + 1)
        return STAGES[passed - 1] if passed else None

    def words(self, now: float, what: str) -> str:
        """What is wrong, as a part of a sentence.

        Args:
            what: What was measured: ``"its devices"``, or ``"its cores"`` where there is no GPU.
        """
        minutes = self.idle_s(now) / 60
        lasted = f"{minutes:.0f} min" if minutes >= 2 else f"{self.idle_s(now):.0f} s"
        step = "" if self._stepped else " and has not reported a step yet"
        if self._use is None:
            return f"it has held its devices for {lasted}{step}"
        percent = f"{100 * self._use:.0f} %" if self._use >= 0.005 or not self._use else "less than 1 %"
        return f"it has used less than {100 * self._rule.below:g} % of {what} for {lasted}, {percent} at last{step}"
