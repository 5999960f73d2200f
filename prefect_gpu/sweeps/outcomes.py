"""How the runs of trials went: read from Prefect, and told to the study."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from math import isnan
from typing import Any
from uuid import UUID

import httpx
import optuna
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import MissingResult, ObjectNotFound
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_gpu.sweeps.cost import RUN_S
from prefect_gpu.sweeps.spoken import Spoken
from prefect_gpu.training import checks
from prefect_gpu.training.trial import PRUNED_AT

ERROR = "error"  # user attributes of a trial: why it failed
NO_RUN = "no_run"  # whether it failed before it had one, through no fault of its own: another trial gets its place
_BEGUN = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
_UNREAD_S = 600.0  # for so long is a result asked for that cannot be read
# Nobody kept the result, or it means nothing here.
_NEVER_READ = (MissingResult, ObjectNotFound, ImportError, AttributeError, pickle.PickleError)
_FIXED = "fixed_params"  # system attribute of Optuna's: what is not left to the sampler
_OF_A_GRID = ("grid_id", "search_space")  # of its GridSampler: by these, a point counts as tried
_INSTEAD_OF = "prefect_gpu:instead_of"  # system attribute: the trial that had no run, and whose parameters it tries


class Outcomes:
    """Tells a study how its trials ended.

    Args:
        compared: Whether trainings are to talk to the study.

    Attributes:
        unread: Runs whose results cannot be read just now, and since when (monotonic seconds).
        exhausted: Whether the sampler has nothing left to propose, such as a grid that was tried as a whole.
    """

    def __init__(self, study: optuna.Study, objective: str, spoken: Spoken, *, compared: bool) -> None:
        self._study, self._objective, self._spoken, self._compared = study, objective, spoken, compared
        self.unread: dict[UUID, float] = {}
        self.exhausted = False

    def tell(self, number: int, run: FlowRun) -> bool:
        """How a trial went. One that failed does not stop the sweep.

        Returns:
            Whether the study was told. Else the result cannot be read just now: its storage is out of reach, say.

        Raises:
            httpx.HTTPError: Prefect is out of reach, which knows where the result is.
            StorageInternalError: The study could not be told just now.
        """
        assert run.state is not None
        trial = self._study.trials[number]
        if trial.state.is_finished():  # it was told before, and the database's answer was lost
            return True
        try:
            pruned = PRUNED_AT in trial.user_attrs and run.state.is_completed()  # what it returned is of no interest
            first = run.id not in self.unread
            value = None if pruned else run_coro_as_sync(run.state.aresult(retry_result_failure=first))
        except Exception as error:
            if run.state.is_completed():  # else it is the training's own
                if isinstance(error, httpx.HTTPError):
                    raise
                if not isinstance(error, _NEVER_READ) and self._may_yet_be_read(number, run.id, error):
                    return False
            self.failed(number, f"{type(error).__name__}: {error}")
            return True
        self._told(number, trial, run, value)
        return True

    def _may_yet_be_read(self, number: int, run_id: UUID, error: Exception) -> bool:
        """Whether a result is asked for again. The training is done, and it may be hours of a device."""
        if run_id not in self.unread:
            self.unread[run_id] = time.monotonic()
            self._spoken.warn(
                "The result of trial %d cannot be read, and is asked for again for up to ten minutes: %s: %s",
                number, type(error).__name__, error,
            )  # fmt: skip
        return time.monotonic() - self.unread[run_id] <= _UNREAD_S

    def _told(self, number: int, trial: FrozenTrial, run: FlowRun, value: Any) -> None:
        """Tell the study what a run has returned."""
        Trial(self._study, trial._trial_id).set_user_attr(RUN_S, run.total_run_time.total_seconds())
        if PRUNED_AT in trial.user_attrs:
            self.end(number, state=TrialState.PRUNED)
            return
        try:
            found = _number(value, self._objective)
        except Exception as error:  # whatever the flow returned may fail as it likes
            self.failed(number, f"{type(error).__name__}: {error}")
            return
        self.end(number, found)
        if self._compared and not trial.intermediate_values:
            self._spoken.not_compared(number)

    def failed(self, number: int, words: str, *, counts: bool = True) -> None:
        trial = self._study.trials[number]
        if trial.state.is_finished():
            return
        if not counts:
            Trial(self._study, trial._trial_id).set_user_attr(NO_RUN, True)
        Trial(self._study, trial._trial_id).set_user_attr(ERROR, words)
        self._spoken.warn("Trial %d failed: %s", number, words)
        self.end(number, state=TrialState.FAIL)

    def had_no_run(self, number: int, words: str) -> None:
        """A trial failed before it had a run, through no fault of its own. Another one tries the same.

        The sampler may not propose it again: a point of a grid, or what somebody has enqueued.
        """
        trials = self._study.trials
        trial = trials[number]
        about = {name: trial.system_attrs[name] for name in _OF_A_GRID if name in trial.system_attrs}
        about |= {_FIXED: {**trial.system_attrs.get(_FIXED, {}), **trial.params}, _INSTEAD_OF: number}
        if about[_FIXED] and not any(one.system_attrs.get(_INSTEAD_OF) == number for one in trials):
            self._study.add_trial(create_trial(state=TrialState.WAITING, system_attrs=about))
        self.failed(number, words, counts=False)

    def end(self, number: int, value: float | None = None, *, state: TrialState | None = None) -> None:
        """Tell the study how a trial has ended. The sampler may find that nothing is left to be tried."""
        try:
            self._study.tell(number, value, state=state, skip_if_finished=True)
        except RuntimeError as error:
            # It calls Study.stop(), which Optuna refuses outside of its own loop. The end is written even so.
            if isinstance(error, OptunaError) or not self._study.trials[number].state.is_finished():
                raise
            self.exhausted = True


def counts(trial: FrozenTrial) -> bool:
    """Whether it is one of the trials that there are to be."""
    return trial.state in _BEGUN and not trial.user_attrs.get(NO_RUN)


def _number(value: Any, objective: str) -> float:
    """What a flow returned, as a number.

    Raises:
        TypeError: It is none, and no mapping that has one.
        ValueError: It is not a number (NaN), which cannot be compared.
    """
    found = value.get(objective) if isinstance(value, Mapping) else value
    try:
        # As a report does, which takes an array of one number, too. A text may be one.
        number = checks.number(found, objective) if hasattr(type(found), "__float__") else float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(
            f"the flow returned {value!r}: let it return a number, or a mapping with one for {objective!r}"
        ) from None
    if isnan(number):
        raise ValueError(f"the flow returned {value!r}, which cannot be compared: its training has diverged")
    return number
