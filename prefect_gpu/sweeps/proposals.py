"""The next trial of a study: what its sampler proposes, of which the one is taken that promises most per second."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, log
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from threadpoolctl import threadpool_limits

from prefect_gpu.sweeps.cost import best_per_second
from prefect_gpu.sweeps.first_rung import steps_of
from prefect_gpu.sweeps.forecast import Forecast
from prefect_gpu.sweeps.space import Space, distribution, propose
from prefect_gpu.training.rungs import Rungs
from prefect_gpu.training.trial import STEPS

_CANDIDATES = 8
_ANYWHERE = 64  # more of them, from nowhere in particular, where each is judged by a forecast and not by the sampler
_BETTER = log(2.0)  # another trial promises so much more than one that trains, or that one goes on: it need not start


@dataclass(frozen=True)
class Plan:
    """Who gets the next place in the pool, and with which values those that train go on.

    Attributes:
        promoted: A stopped trial; None: a new one.
        parameters: Of the new one, as Optuna has them.
        own: By rung, the worst value with which the promoted or new trial goes on there.
        needed: The same of each trial that trains.
    """

    promoted: int | None
    parameters: Mapping[str, Any]
    own: Mapping[str, float]
    needed: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


class Proposer:
    """Proposes trials, and with rungs also promotions.

    Optuna's samplers look only at trials that are over. Here a trial that has stopped at a rung, or trains still, has
    something to teach as well. So TPE is asked in a copy of the study, in memory, in which each such trial counts as
    pruned with what it has reported; and it is asked several times, so that there is a choice. Other samplers may keep
    notes in the study itself, and are asked there.

    Args:
        learned_cost: Choose by expected improvement per second; else the sampler's first proposal is taken.
    """

    def __init__(self, study: Study, space: Space, *, learned_cost: bool) -> None:
        self._study, self._space = study, space
        self._maximize = study.direction is optuna.study.StudyDirection.MAXIMIZE
        self._candidates = _CANDIDATES if learned_cost else 1
        self._forecast = Forecast(maximize=self._maximize)

    def plan(
        self, rungs: Rungs, trials: Sequence[FrozenTrial], stopped: Collection[int], training: Collection[int]
    ) -> Plan | None:
        """Compare new trials and stopped ones by what they promise. None: too little is known, or it is not wanted.

        Args:
            rungs: Where trials stop.
            trials: All of the study, as they are now.
            stopped: Trials that wait at a rung.
            training: Trials that have a place in the pool.
        """
        if self._candidates == 1 or not self._by_tpe(trials):
            return None
        with threadpool_limits(1):  # small matrices, beside trainings: more threads only take cores from these
            return self._plan(rungs.judging(steps_of(trials)), trials, stopped, training)

    def _plan(
        self, rungs: Rungs, trials: Sequence[FrozenTrial], stopped: Collection[int], training: Collection[int]
    ) -> Plan | None:
        last = _last(rungs, trials)
        kinds = _kinds(trials)
        if not self._forecast.learn(trials, kinds, last):
            return None
        candidates = [*self._proposals(trials), *self._anywhere(len(trials))]
        if (with_new := _kinds([*trials, *candidates])) != kinds:  # a branch that nobody has tried
            self._forecast.learn(trials, with_new, last)
        waiting = [trials[number] for number in stopped if _ahead(rungs, trials[number], last)]
        waiting = [trial for trial in waiting if not _has_diverged(trial)]
        compared = [*candidates, *waiting]
        done = [0] * len(candidates) + [_done(trial) for trial in waiting]
        # A proposal has the number that it had in the copy: what counts for its bracket is the one that it will have.
        ahead = [rungs.ahead(len(trials), 0, last)] * len(candidates)
        ahead += [_ahead(rungs, trial, last) for trial in waiting]
        promises = self._forecast.promises(compared, ahead, done, [trials[number] for number in training])
        best = int(promises.argmax())
        bar = max(promises[:best].max(initial=-1e9), promises[best + 1 :].max(initial=-1e9)) - _BETTER
        return Plan(
            promoted=None if best < len(candidates) else compared[best].number,
            parameters=compared[best].params,
            own=self._needed(compared[best], ahead[best], bar),
            needed={n: self._needed(trials[n], _ahead(rungs, trials[n], last), bar) for n in training},
        )

    def next(self, parameters: Mapping[str, Any] | None = None) -> tuple[Trial, dict[str, Any]]:
        """The next trial, and the parameters of its training.

        Args:
            parameters: Of the plan; None: there is no plan.
        """
        trials = self._study.get_trials(deepcopy=False) if parameters is None else []
        if parameters is None and self._by_tpe(trials):
            candidates = self._proposals(trials)
            known = [trial for trial in trials if trial.params]
            several = len(candidates) > 1
            with threadpool_limits(1):
                chosen = best_per_second(known, candidates, maximize=self._maximize) if several else 0
            parameters = candidates[chosen].params
        if parameters is not None:
            self._study.enqueue_trial(dict(parameters))
        return propose(self._study, self._space)

    def _by_tpe(self, trials: Sequence[FrozenTrial]) -> bool:
        """Whether there is a choice: what somebody has enqueued comes first."""
        waiting = any(trial.state is TrialState.WAITING for trial in trials)
        return isinstance(self._study.sampler, TPESampler) and not waiting

    def _proposals(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        known = [trial for trial in trials if trial.params]
        return self._proposed(self._study.sampler, known, self._candidates)

    def _anywhere(self, seed: int) -> list[FrozenTrial]:
        """Draws from the whole space: the sampler keeps near to what was good, among the few that it has seen."""
        sampler = RandomSampler(seed=seed)
        if callable(self._space):
            return self._proposed(sampler, [], _ANYWHERE)
        kinds = {name: distribution(name, asked) for name, asked in self._space.items()}
        return [_drawn(sampler, kinds) for _ in range(_ANYWHERE)]

    def _proposed(self, sampler: BaseSampler, known: list[FrozenTrial], count: int) -> list[FrozenTrial]:
        with _silently():
            copy = optuna.create_study(directions=self._study.directions, sampler=sampler)
        copy.add_trials([_as_over(trial) for trial in known])
        numbers = [propose(copy, self._space)[0].number for _ in range(count)]
        trials = copy.get_trials(deepcopy=False)
        return [trials[number] for number in numbers]

    def _needed(self, trial: FrozenTrial, ahead: list[int], bar: float) -> dict[str, float]:
        """At the next two rungs: before a trial comes to the third, it is looked at again."""
        return {
            str(level): self._forecast.needed(trial, level, ahead[at + 1 :], bar)
            for at, level in enumerate(ahead[:-1][:2])
        }


def _last(rungs: Rungs, trials: Sequence[FrozenTrial]) -> int:
    """The last step of a training: as long as none has said how many it has, one rung above the highest."""
    said = steps_of(trials)
    highest = max((_done(trial) for trial in trials), default=0)
    last = max(said, highest) if said else highest * rungs.reduction
    return last if rungs.max_steps is None else min(last, rungs.max_steps)


def _ahead(rungs: Rungs, trial: FrozenTrial, last: int) -> list[int]:
    return rungs.ahead(trial.number, _done(trial), min(last, trial.user_attrs.get(STEPS, last)))


def _drawn(sampler: RandomSampler, kinds: Mapping[str, BaseDistribution]) -> FrozenTrial:
    """One draw, without a study around it, which costs most of the time."""
    unused: Any = None  # a random sampler does not look at the study and the trial that it is given
    params = {name: sampler.sample_independent(unused, unused, name, kind) for name, kind in kinds.items()}
    return create_trial(state=TrialState.RUNNING, params=params, distributions=dict(kinds))


@contextmanager
def _silently() -> Iterator[None]:
    """Optuna says of each study that it was created: of copies, nobody need know."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _kinds(trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
    return {name: kind for trial in trials for name, kind in sorted(trial.distributions.items())}


def _done(trial: FrozenTrial) -> int:
    """The last step that a trial has reported."""
    return max((step for step, value in trial.intermediate_values.items() if isfinite(value)), default=0)


def _has_diverged(trial: FrozenTrial) -> bool:
    """Whether its newest report is no number. The forecast leaves that out, and would take it for a new trial."""
    return trial.last_step is not None and not isfinite(trial.intermediate_values[trial.last_step])


def _as_over(trial: FrozenTrial) -> FrozenTrial:
    if trial.state.is_finished():
        return trial
    return create_trial(
        state=TrialState.PRUNED,
        params=trial.params,
        distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
    )
