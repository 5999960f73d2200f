"""From which step on trials are judged: found from how the first of them learn.

A low rung is cheap, but not every loss means something there. With boosted trees, a large learning rate leads after
three steps of 81, and is not among the best at the end; with a small network, the order after three steps is that at
the end. How the learning curves *bend* tells these apart: each curve is continued to the end of the training, along its
slope from the lower step to the higher one, in logarithms of loss and step (a power law). Where trials rank by that as
they do by their loss at the lower step, their order is there to stay, and they are judged there.

The first trials are judged at the higher step, and so all of them show how they bend. What is found is kept in the
study: a sweep that goes on later goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite, log

from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial
from scipy.stats import spearmanr

from prefect_gpu.training.rungs import Rungs
from prefect_gpu.training.trial import STEPS

FIRST_RUNG = "first_rung"
"""User attribute of a study: the first rung that was found."""

_TRIALS = 8  # from which it is found; each trains to the higher step for that
_AGREE = 0.75  # rank correlation from which on the lower step is trusted


def with_first_rung(
    rungs: Rungs, study: Study, trials: Sequence[FrozenTrial], say: Callable[[int], None] = lambda step: None
) -> Rungs:
    """The rungs, with a first one: that which was given, or was found, or the higher step until then.

    They are returned as they are as long as no trial has said how many steps a training has. Each trial knows that.

    Args:
        trials: All of the study.
        say: It has just been found.
    """
    steps = steps_of(trials)
    if rungs.min_steps is not None or steps is None:
        return rungs
    found = study.user_attrs.get(FIRST_RUNG)
    if found is None:
        found = found_by(rungs, trials, steps, maximize=study.direction is StudyDirection.MAXIMIZE)
        if found is None:
            return rungs.judging(steps)
        study.set_user_attr(FIRST_RUNG, found)
        say(found)
    return replace(rungs, min_steps=found)


def found_by(rungs: Rungs, trials: Sequence[FrozenTrial], steps: int, *, maximize: bool) -> int | None:
    """The first rung; None: too few trials have come to the higher of the two steps.

    Args:
        steps: Of a training.
        maximize: Whether the largest value is the best.
    """
    low = rungs.lowest(steps)
    high, last = low * rungs.reduction, min(steps, rungs.max_steps or steps)
    sign = -1.0 if maximize else 1.0
    pairs = [
        (sign * trial.intermediate_values[low], sign * trial.intermediate_values[high])
        for trial in trials
        if {low, high} <= trial.intermediate_values.keys()
    ]
    if len(pairs) < _TRIALS:
        return None
    if all(value > 0 for pair in pairs for value in pair if isfinite(value)):  # a loss
        pairs = [(log(begin), log(end)) if isfinite(begin) and isfinite(end) else (inf, inf) for begin, end in pairs]
    further = log(last / high) / log(rungs.reduction)
    # A trial that has diverged ranks last at both steps.
    early = [begin if isfinite(begin) else inf for begin, _ in pairs]
    continued = [end + further * (end - begin) if isfinite(end - begin) else inf for begin, end in pairs]
    if len(set(early)) == 1 or len(set(continued)) == 1:
        return high
    return low if spearmanr(early, continued).statistic >= _AGREE else high


def steps_of(trials: Sequence[FrozenTrial]) -> int | None:
    """How many steps a whole training has, as far as one of them has said so."""
    return max((trial.user_attrs.get(STEPS, 0) for trial in trials), default=0) or None
