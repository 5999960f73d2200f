"""What a sweep says while it runs: a line when a trial has ended or stopped, or is promoted, and who is best so far.

In a flow run the lines are in its log, else on the console as all of Prefect's.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from prefect.exceptions import MissingContextError
from prefect.logging import get_logger, get_run_logger

from prefect_gpu.units import plural

_ENDED = {TrialState.COMPLETE: "is complete", TrialState.PRUNED: "is pruned", TrialState.RUNNING: "has stopped"}


class Spoken:
    """Speaks of the trials of a study.

    Args:
        objective: What the study optimises, by its name.
    """

    def __init__(self, study: optuna.Study, objective: str) -> None:
        self._study, self._objective = study, objective
        self._said_not_compared = False

    def at_rest(self, number: int) -> None:
        """A trial is over, or has stopped at a rung. Of one that failed, the warning has spoken."""
        trials = self._study.get_trials(deepcopy=False)
        trial = trials[number]
        if trial.state not in _ENDED:
            return
        value = _value(trial)
        what = f", {self._objective} {value:.6g}" if value is not None else ""
        # The study knows the step at which a trial was compared last. One that is complete has gone on from there.
        compared = trial.last_step is not None and trial.state is not TrialState.COMPLETE
        steps = f" after step {trial.last_step}" if compared else ""
        logger().info("Trial %d %s%s%s.%s", number, _ENDED[trial.state], steps, what, self._best(trials))

    def promoted(self, number: int, why: str) -> None:
        """A trial goes on."""
        trials = self._study.get_trials(deepcopy=False)
        step = trials[number].last_step
        at = f" from step {step}" if step is not None else ""
        logger().info("Trial %d is promoted%s: %s.%s", number, at, why, self._best(trials))

    def suspended(self, number: int) -> None:
        """Somebody has suspended the run of a trial, which was not at a rung."""
        logger().warning(
            "Trial %d was suspended by hand. The sweep waits until its run is resumed or cancelled in Prefect.", number
        )

    def not_compared(self, number: int) -> None:
        """A trial has come to its end, and has told the study nothing on its way. Of others, this is not said again."""
        if not self._said_not_compared:
            self._said_not_compared = True
            logger().warning(
                "Trial %d was compared with no other one while it trained: it reported no %r at a step where trials "
                "are looked at. Let its training call run.report(%s=...) in each step. If it does, the run's log says "
                "what is wrong.",
                number, self._objective, self._objective,
            )  # fmt: skip

    def none_is_new(self, before: int, trials: int) -> None:
        """An earlier call has had as many trials as there are to be."""
        logger().warning(
            "The study %r has %s of an earlier sweep, and trials=%d asks for no more: none is begun. For more trials, "
            "give a larger number; to search anew, give another name=.",
            self._study.study_name, plural(before, "trial"), trials,
        )  # fmt: skip

    def first_rung(self, step: int) -> None:
        """It was found where trials are to be judged first."""
        logger().info("From now on, trials are compared after step %d for the first time.", step)

    def warn(self, message: str, *about: Any) -> None:
        """Something is wrong."""
        logger().warning(message, *about)

    def _best(self, trials: list[FrozenTrial]) -> str:
        """The best of all that was reported, also by trials that train still."""
        known = [(value, trial.number) for trial in trials for value in _values(trial) if isfinite(value)]
        if not known:
            return ""
        sign = 1.0 if self._study.direction is optuna.study.StudyDirection.MINIMIZE else -1.0
        value, number = min(known, key=lambda one: (sign * one[0], one[1]))
        return f" The best so far is trial {number}, with {self._objective} {value:.6g}."


def _values(trial: FrozenTrial) -> list[float]:
    """All that a trial has reported, its result last. Of one that failed nothing counts."""
    if trial.state is TrialState.FAIL:
        return []
    reported = [trial.intermediate_values[step] for step in sorted(trial.intermediate_values)]
    return reported if trial.value is None else [*reported, trial.value]


def _value(trial: FrozenTrial) -> float | None:
    return values[-1] if (values := _values(trial)) else None


def logger() -> Any:
    """Of the flow run, if there is one."""
    try:
        return get_run_logger()
    except MissingContextError:
        return get_logger("gpu.sweeps")
