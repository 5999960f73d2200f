"""What each paper claims beside what comes out here."""

from __future__ import annotations

from dataclasses import dataclass

EQUAL = 0.005
"""Differences of up to this part of the baseline count as none: another seed changes most figures by as much."""


@dataclass(frozen=True)
class Comparison:
    """One figure of one paper, in its own setting.

    Attributes:
        paper: ``liquid``, ``specon``, ``f-scheduling``, ``deepshare`` or ``coda``.
        setting: Which experiment, in a few words.
        metric: What is measured, with its unit.
        against: The baseline.
        paper_baseline: The baseline's figure as printed; None if the paper only prints the improvement.
        paper_result: The system's figure as printed; likewise.
        paper_improvement: By which part of the baseline the paper's system is better (0.2 is 20 %).
        baseline: The baseline's figure, simulated here.
        result: The same under the paper's profile.
        adaptive: The same under ``adaptive``, unchanged.
        larger_is_better: As for a utilisation.
        assumed: What the paper does not say and was assumed; and what was calibrated, on the baseline only.
    """

    paper: str
    setting: str
    metric: str
    against: str
    paper_baseline: float | None
    paper_result: float | None
    paper_improvement: float
    baseline: float
    result: float
    adaptive: float
    larger_is_better: bool = False
    assumed: str = ""

    @property
    def improvement(self) -> float:
        """By which part of the baseline the paper's profile is better here."""
        return self._better(self.result)

    @property
    def adaptive_improvement(self) -> float:
        """By which part of the baseline ``adaptive`` is better here."""
        return self._better(self.adaptive)

    @property
    def holds(self) -> bool:
        """Whether the paper's profile shows the paper's improvement or better."""
        return self.improvement >= self.paper_improvement - 1e-9

    @property
    def adaptive_holds(self) -> bool:
        """Whether ``adaptive`` is at least as good as the paper's own system, but for :data:`EQUAL`."""
        return self.adaptive_improvement >= self.improvement - EQUAL

    def _better(self, value: float) -> float:
        if self.baseline == 0:
            return 0.0
        change = (value - self.baseline) / self.baseline
        return change if self.larger_is_better else -change
