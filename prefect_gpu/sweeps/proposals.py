"""The next trial of a study: what its sampler proposes, of which the one is taken that promises most per second."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.samplers import TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from prefect_gpu.sweeps.cost import best_per_second
from prefect_gpu.sweeps.space import Space, propose

_CANDIDATES = 8


class Proposer:
    """Proposes trials.

    Optuna's samplers look only at trials that are over. Here a trial that has stopped at a rung, or trains still, has
    something to teach as well. So TPE is asked in a copy of the study, in memory, in which each such trial counts as
    pruned with what it has reported; and it is asked several times, so that there is a choice. Other samplers may keep
    notes in the study itself, and are asked there.

    Args:
        learned_cost: Choose by expected improvement per second; else the sampler's first proposal is taken.
    """

    def __init__(self, study: Study, space: Space, *, learned_cost: bool) -> None:
        self._study, self._space = study, space
        self._candidates = _CANDIDATES if learned_cost else 1

    def next(self) -> tuple[Trial, dict[str, Any]]:
        """The next trial, and the parameters of its training."""
        sampler = self._study.sampler
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if isinstance(sampler, TPESampler) and not waiting:  # what somebody has enqueued comes first
            known = [trial for trial in self._study.get_trials(deepcopy=False) if trial.params]
            copy = optuna.create_study(directions=self._study.directions, sampler=sampler)
            copy.add_trials([_as_over(trial) for trial in known])
            candidates = [propose(copy, self._space)[0] for _ in range(self._candidates)]
            maximize = self._study.direction is optuna.study.StudyDirection.MAXIMIZE
            frozen = [copy.trials[trial.number] for trial in candidates]
            chosen = best_per_second(known, frozen, maximize=maximize) if len(frozen) > 1 else 0
            self._study.enqueue_trial(frozen[chosen].params)
        return propose(self._study, self._space)


def _as_over(trial: FrozenTrial) -> FrozenTrial:
    if trial.state.is_finished():
        return trial
    return create_trial(
        state=TrialState.PRUNED,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
    )
