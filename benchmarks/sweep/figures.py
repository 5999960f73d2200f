"""What a sweep's runs wrote down, and what follows from it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Marks:
    """When one run did what: seconds on the machine's monotonic clock.

    Attributes:
        began: Its function's first line.
        prepared: Everything is imported and loaded; it could train.
        first_step: It begins its first step.
        trained: Its last step is done; it enters its saving.
        saved: All is written.
        on_device: Whether it was bound to the device's core until its last step.
    """

    name: str
    began: float
    prepared: float
    first_step: float
    trained: float
    saved: float
    loss: float
    on_device: bool


def read_marks(folder: Path) -> list[Marks]:
    """What the runs have written, in the order in which they trained."""
    found = [Marks(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(found, key=lambda marks: marks.first_step)


@dataclass(frozen=True)
class Figures:
    """One sweep in numbers, all times in seconds.

    Attributes:
        makespan_s: From the submission to the last save.
        mean_jct_s: Mean time from the submission to a run's own save.
        training_s: Sum of the trainings.
        idle_s: Sum of the gaps between one training's end and the next one's first step, on the one device.
        prepared_share: Part of the hand-overs in which the next run was prepared before the device was free; None where
            there are none.
        prepared_gaps_s: The gaps of those.
        gaps_s: All gaps.
        overlaps: Hand-overs in which the next run trained before the one before it was done. There must be none.
        off_device: Runs that were moved off the device's core while they trained. There must be none.
    """

    makespan_s: float
    mean_jct_s: float
    training_s: float
    idle_s: float
    prepared_share: float | None
    prepared_gaps_s: tuple[float, ...]
    gaps_s: tuple[float, ...]
    overlaps: int
    off_device: int


def figures(runs: Sequence[Marks], submitted: float) -> Figures:
    """The figures of one sweep.

    Args:
        runs: All its runs.
        submitted: When they were submitted, on the same clock.

    Raises:
        ValueError: There are no runs.
    """
    if not runs:
        raise ValueError("runs is empty: a sweep without runs has no figures.")
    in_order = sorted(runs, key=lambda marks: marks.first_step)
    steps = [(after.first_step - before.trained, after.prepared <= before.trained)
             for before, after in pairwise(in_order)]  # fmt: skip
    return Figures(
        makespan_s=max(run.saved for run in runs) - submitted,
        mean_jct_s=statistics.fmean(run.saved - submitted for run in runs),
        training_s=sum(run.trained - run.first_step for run in runs),
        idle_s=sum(max(0.0, gap) for gap, _ in steps),
        prepared_share=sum(prepared for _, prepared in steps) / len(steps) if steps else None,
        prepared_gaps_s=tuple(gap for gap, prepared in steps if prepared),
        gaps_s=tuple(gap for gap, _ in steps),
        overlaps=sum(gap < 0 for gap, _ in steps),
        off_device=sum(not run.on_device for run in runs),
    )


def changed_losses(sweeps: Iterable[Sequence[Marks]]) -> list[str]:
    """Names of the trainings whose final loss is not the same, to the last bit, in all sweeps that have them."""
    losses: dict[str, set[float]] = {}
    for runs in sweeps:
        for run in runs:
            losses.setdefault(run.name, set()).add(run.loss)
    return sorted(name for name, different in losses.items() if len(different) > 1)


def median_of(sweeps: Sequence[Figures], name: str) -> float:
    """The median of one figure over repeats."""
    return statistics.median(getattr(one, name) for one in sweeps)
