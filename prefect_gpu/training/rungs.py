"""Rungs of asynchronous successive halving: after which steps trials are compared, and which of them go on.

Li et al., *A System for Massively Parallel Hyperparameter Tuning*, MLSys 2020, Algorithm 2 (ASHA): a trial stops at
each rung, and is promoted to the next one as soon as it is among the best 1/η of all that have reached its rung. One
that is among them when it gets there does not stop at all. Several brackets, whose first rungs lie higher and higher,
are asynchronous Hyperband.

A sweep finds its first rung by itself (:mod:`prefect_gpu.sweeps.first_rung`). Its first trials are judged from the
higher of two steps on. What they report at the lower one says which of the two it is to be.

Pure: values of trials in, decisions out. A trial asks here when it reaches a rung, the sweep when a device is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

_GOLDEN = 0.6180339887498949  # multiples of it, without their whole part, fill 0..1 evenly

Reached = Mapping[int, Mapping[int, float]]
"""By number of a trial: by step, the values that it has reported there. Smaller is better."""


@dataclass(frozen=True)
class Rungs:
    """Where the rungs are; made by :func:`asha`.

    Attributes:
        min_steps: The first rung: steps of the training. None: it is to be found, and only :meth:`lowest` and
            :meth:`judging` are of use.
        reduction: η: one of so many goes on, and has so many times the steps at the next rung.
        max_steps: Trials end there; None: at their own end.
        brackets: How many; the first rung of each is ``reduction`` times that of the one before.
    """

    min_steps: int | None = 1
    reduction: int = 3
    max_steps: int | None = None
    brackets: int = 1

    def lowest(self, steps: int | None) -> int:
        """The lower of the two steps of which the first rung is found: three reductions below a training's end.

        Args:
            steps: Of a training; None: unknown.

        Example:
            >>> asha().lowest(steps=100)
            3
        """
        last = min((known for known in (steps, self.max_steps) if known), default=1)
        return int(max(1, last // self.reduction**3))

    def judging(self, steps: int | None) -> Rungs:
        """These, with a first rung: as long as none has been found, the higher of the two steps.

        Args:
            steps: Of a training; None: unknown. The first rung is the first step then.

        Example:
            >>> asha().judging(steps=100).min_steps
            9
        """
        if self.min_steps is not None:
            return self
        known = steps is not None or self.max_steps is not None
        return replace(self, min_steps=self.lowest(steps) * (self.reduction if known else 1))

    def bracket(self, trial: int) -> int:
        """The bracket of a trial, by its number. Shares are Hyperband's: each bracket costs about as much as another.

        Example:
            >>> [Rungs(brackets=2).bracket(trial) for trial in range(8)]
            [0, 1, 0, 1, 0, 0, 1, 0]
        """
        weights = [self.reduction**-at * self.brackets / (self.brackets - at) for at in range(self.brackets)]
        place = trial * _GOLDEN % 1.0 * sum(weights)
        for at, weight in enumerate(weights[:-1]):
            if place < weight:
                return at
            place -= weight
        return self.brackets - 1

    def levels(self, trial: int) -> Iterator[int]:
        """The steps at which a trial's rungs are, the lowest first.

        Example:
            >>> list(Rungs(min_steps=2, reduction=3, max_steps=54).levels(trial=0))
            [2, 6, 18]
        """
        assert self.min_steps is not None, "it is to be found: see judging"
        level = self.min_steps * self.reduction ** self.bracket(trial)
        while self.max_steps is None or level < self.max_steps:
            yield level
            level *= self.reduction

    def between(self, trial: int, before: int, now: int) -> list[int]:
        """The rungs that a trial reaches on its way from one step to another."""
        found = []
        for level in self.levels(trial):
            if level > now:
                break
            if level > before:
                found.append(level)
        return found

    def below(self, trial: int, before: int, now: int) -> list[int]:
        """The steps under its first rung that a trial reaches on its way from one step to another.

        A trial is not judged there. Its losses show in which way its learning curve bends.

        Example:
            >>> Rungs(min_steps=9, reduction=3).below(trial=0, before=0, now=81)
            [1, 3]
        """
        found = []
        level = next(self.levels(trial), 0)
        while level := level // self.reduction:
            if before < level <= now:
                found.append(level)
        return found[::-1]

    def ahead(self, trial: int, done: int, last: int) -> list[int]:
        """The steps at which a trial is still to be looked at: its rungs, and the end of its training.

        Example:
            >>> Rungs(min_steps=2, reduction=3).ahead(trial=0, done=2, last=20)
            [6, 18, 20]
        """
        last = last if self.max_steps is None else min(last, self.max_steps)
        return [level for level in self.between(trial, done, last) if level < last] + ([last] if done < last else [])

    def highest(self, trial: int, values: Mapping[int, float]) -> int | None:
        """The highest rung that a trial has reached; None: it is below the first."""
        levels = self.between(trial, 0, max(values, default=0))
        return max((level for level in levels if level in values), default=None)

    def goes_on(self, trial: int, reached: Reached, *, at_least: int = 0) -> bool:
        """Whether a trial is among the best 1/η of its highest rung, all trials of its bracket that came there counted.

        Args:
            at_least: So many are, however few came there. 1, where whoever stops has no second chance.
        """
        level = self.highest(trial, reached[trial])
        if level is None:
            return False
        bracket = self.bracket(trial)
        there = [number for number, values in reached.items() if level in values and self.bracket(number) == bracket]
        best = sorted(there, key=lambda number: (reached[number][level], number))
        return trial in best[: max(at_least, len(best) // self.reduction)]

    def promotion(self, stopped: Iterable[int], reached: Reached) -> int | None:
        """Which of the stopped trials goes on if a device is free: of the highest rung that has one, the best."""
        return self.furthest((trial for trial in stopped if self.goes_on(trial, reached)), reached)

    def furthest(self, stopped: Iterable[int], reached: Reached) -> int | None:
        """The best of the highest rung that one of these trials has reached, whoever else came there.

        Example:
            >>> asha(min_steps=1).furthest([0, 1, 2], {0: {1: 0.1}, 1: {1: 0.5, 3: 0.4}, 2: {1: 0.4, 3: 0.3}})
            2
        """
        found = []
        for trial in stopped:
            level = self.highest(trial, reached[trial])
            if level is not None:
                found.append((-level, reached[trial][level], trial))
        return min(found)[2] if found else None


def asha(min_steps: int | None = None, max_steps: int | None = None, reduction: int = 3, brackets: int = 1) -> Rungs:
    """Rungs with promotion, for ``sweep(..., rungs=asha(...))``.

    Args:
        min_steps: The first rung: after so many steps trials are compared for the first time. None: the sweep finds it,
            or with brackets, of which each begins at another one, it is the first step.
        max_steps: Where trials end; None: where their trainings end by themselves.
        reduction: Of the trials at a rung, the best one in so many goes on, to so many times the steps.
        brackets: 1 is ASHA. More are asynchronous Hyperband, for losses that say little at the first rung.

    Raises:
        ValueError: A number makes no sense. The message names it.

    Example:
        >>> list(asha(min_steps=1, max_steps=81).levels(trial=0))
        [1, 3, 9, 27]
    """
    for field, value, least in (("min_steps", min_steps, 1), ("reduction", reduction, 2), ("brackets", brackets, 1)):
        if not (value is None and field == "min_steps") and (type(value) is not int or value < least):
            raise ValueError(f"asha({field}={value!r}) is not allowed: give a whole number of at least {least}.")
    if min_steps is None and brackets > 1:
        min_steps = 1
    last = (min_steps or 1) * reduction ** (brackets - 1)
    if max_steps is not None and (type(max_steps) is not int or max_steps <= last):
        raise ValueError(
            f"asha(max_steps={max_steps!r}) is not allowed: give a whole number above {last}, the first rung of the "
            "last bracket, or leave it out."
        )
    return Rungs(min_steps, reduction, max_steps, brackets)
