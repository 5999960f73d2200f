"""Which trial a search gives a free place to."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID, uuid4

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from prefect_gpu import asha
from prefect_gpu.sweeps import runs
from prefect_gpu.sweeps.proposals import Proposer
from prefect_gpu.sweeps.search import Search


def test_a_search_with_too_few_trials_for_its_rungs_trains_the_best_one_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two at a rung, the best third is nobody. Else such a search would have no result."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [study.ask({"x": FloatDistribution(0.0, 1.0)}) for _ in range(3)]
    for trial, values in zip(trials, ((9.0,), (8.0, 7.0), (8.5, 6.0)), strict=True):
        for step, value in zip((1, 3), values, strict=False):
            trial.report(value, step)
    resumed: list[UUID] = []
    monkeypatch.setattr(runs, "resume", lambda run_id, words: resumed.append(run_id))
    train = cast(Any, None)  # no new trial is started
    proposer = Proposer(study, {"x": (0.0, 1.0)}, learned_cost=False)
    search = Search(
        train, study, proposer, fixed={}, objective="loss", watched_in=None, rungs=asha(min_steps=1, max_steps=9)
    )
    search._stopped = {trial.number: uuid4() for trial in trials}
    best = search._stopped[2]
    assert search._next(trials=3) and resumed == [best]
    assert not search._next(trials=3), "it trains"
    search._training.clear()
    study.tell(trials[2], 5.0)
    assert not search._next(trials=3) and resumed == [best]
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING, TrialState.RUNNING, TrialState.COMPLETE]
