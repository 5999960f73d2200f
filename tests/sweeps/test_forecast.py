"""What a search expects of trials at later steps, and whom it gives the next place in the pool."""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from prefect_gpu.sweeps.forecast import Forecast
from prefect_gpu.sweeps.proposals import Plan, Proposer
from prefect_gpu.training.rungs import asha
from prefect_gpu.training.trial import STEP_S, STEPS, TRAINED

KINDS = {"x": FloatDistribution(0.0, 1.0)}
RUNGS = asha(min_steps=1, reduction=3)
LAST = 27


def curve(x: float, step: int) -> float:
    """Learning curves that cross: the larger x, the sooner the loss comes down, and the higher it stays."""
    return 0.05 + 0.5 * x + 2.0 * math.exp(-(0.05 + x) * step)


def trial(number: int, x: float, steps: int, step_s: float = 1.0, sign: float = 1.0) -> FrozenTrial:
    levels = [level for level in (1, 3, 9, 27) if level <= steps]
    made = create_trial(
        state=TrialState.PRUNED if levels else TrialState.RUNNING,
        params={"x": x},
        distributions=KINDS,
        intermediate_values={level: sign * curve(x, level) for level in levels},
        user_attrs={STEP_S: step_s, STEPS: LAST} if levels else {},
    )
    made.number = number
    return made


def learned(sign: float = 1.0, step_s: Any = lambda x: 1.0) -> Forecast:
    """Of twenty trials, of which every fourth has trained to the end."""
    chance = random.Random(0)
    drawn = [chance.random() for _ in range(20)]
    trials = [trial(n, x, LAST if n % 4 == 0 else 3, step_s(x), sign) for n, x in enumerate(drawn)]
    forecast = Forecast(maximize=sign < 0)
    assert forecast.learn(trials, KINDS, LAST)
    return forecast


of_all = functools.cache(learned)  # to be asked only


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_who_leads_at_the_first_rung_is_not_who_is_promoted_when_curves_cross(sign: float) -> None:
    slow, fast = trial(90, 0.1, 3, sign=sign), trial(91, 0.9, 3, sign=sign)
    assert curve(0.9, 3) < curve(0.1, 3) and curve(0.1, 27) < curve(0.9, 27)
    promises = learned(sign).promises([slow, fast], [[9, 27], [9, 27]], [3, 3])
    assert promises[0] > promises[1]


def test_of_two_that_promise_as_much_the_one_with_less_time_ahead_comes_first() -> None:
    forecast = learned(step_s=lambda x: 0.1 + 10.0 * x)
    assert forecast.step_seconds([trial(90, 0.9, 0)])[0] > 3 * forecast.step_seconds([trial(91, 0.1, 0)])[0]
    one = trial(90, 0.1, 9)
    promises = forecast.promises([one, one], [[27], [27]], [9, 3])
    assert promises[0] > promises[1]


def test_where_starts_are_dear_a_new_trial_is_looked_at_later() -> None:
    """A first look that takes no time is worth little where the start to it takes a minute."""
    known = [trial(n, random.Random(n).random(), LAST if n % 4 == 0 else 3) for n in range(20)]
    found = []
    for start_s in (0.1, 100.0):
        for n, one in enumerate(known):
            one.user_attrs[TRAINED] = [[1000.0 * n, 1000.0 * (n + 1) - start_s]]
        forecast = Forecast(maximize=False)
        assert forecast.learn(known, KINDS, LAST)
        soon, late = forecast.promises([trial(90, 0.1, 0)] * 2, [[3], [LAST]], [0, 0])
        found.append(late - soon)
    assert found[1] > found[0]


def test_what_trains_already_is_not_tried_once_more() -> None:
    chance = random.Random(0)
    known = [trial(n, 0.4 + 0.6 * chance.random(), LAST) for n in range(12)]  # nobody knows what is below
    forecast, one = Forecast(maximize=False), [trial(90, 0.0, 0)]
    assert forecast.learn(known, KINDS, LAST)
    [before], [after] = (forecast.promises(one, [[LAST]], [0], others) for others in ([], [trial(91, 0.0, 0)]))
    assert after < before


@given(st.floats(0.0, 1.0), st.floats(-30.0, 5.0), st.floats(0.0, 5.0))
def test_the_more_others_promise_the_better_a_value_is_needed(x: float, promise: float, more: float) -> None:
    forecast = of_all()
    lenient = forecast.needed(trial(90, x, 1), 3, [9, 27], promise)
    strict = forecast.needed(trial(90, x, 1), 3, [9, 27], promise + more)
    assert 0.0 < strict <= lenient < math.inf


def test_needed_values_of_a_measure_that_is_to_grow_have_its_sign() -> None:
    assert learned(-1.0).needed(trial(90, 0.1, 1, sign=-1.0), 3, [9, 27], -3.0) < 0.0
    assert learned(1.0).needed(trial(90, 0.1, 1), 3, [9, 27], -3.0) > 0.0


def test_too_few_trials_teach_nothing_and_reports_that_are_no_numbers_are_left_out() -> None:
    forecast = Forecast(maximize=False)
    few = [trial(n, n / 10, 3) for n in range(7)]
    assert not forecast.learn(few, KINDS, LAST)
    broken = trial(7, 0.7, 3)
    broken.intermediate_values = {1: math.inf, 3: math.nan}
    assert not forecast.learn([*few, broken], KINDS, LAST)
    assert forecast.learn([*few, broken, trial(8, 0.8, 3)], KINDS, LAST)


def studied(count: int, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
    """Trials that have stopped at step 3, every fourth at its end."""
    study = optuna.create_study(sampler=sampler or optuna.samplers.TPESampler(seed=0))
    for number in range(count):
        made = study.ask(KINDS)
        for level in (1, 3, 9, 27) if number % 4 == 0 else (1, 3):
            made.report(curve(made.params["x"], level), level)
        made.set_user_attr(STEP_S, 1.0)
        made.set_user_attr(STEPS, LAST)
    return study


def plan_of(
    study: optuna.Study,
    stopped: list[int],
    training: list[int],
    *,
    learned_cost: bool = True,
) -> Plan | None:
    """The plan for trials that have stopped, and others that train."""
    return Proposer(study, KINDS, learned_cost=learned_cost).plan(RUNGS, study.trials, stopped, training)


def test_a_plan_names_one_trial_and_tells_all_others_what_they_need() -> None:
    study = studied(16)
    proposer = Proposer(study, KINDS, learned_cost=True)
    stopped, training = [n for n in range(16) if n % 4 and n != 15], [15]
    plan = proposer.plan(RUNGS, study.trials, stopped, training)
    assert plan is not None and plan.promoted in [None, *stopped]
    assert set(plan.needed) == {15} and set(plan.needed[15]) == {"9"}, "it has rung 9 before it, and then its end"
    assert set(plan.own) == ({"1", "3"} if plan.promoted is None else {"9"})
    if plan.promoted is None:
        assert proposer.next(plan.parameters)[1] == plan.parameters


def test_a_trial_that_is_far_ahead_is_promoted_before_new_ones_are_tried() -> None:
    study = studied(16)
    gem = study.ask(KINDS)
    for level in (1, 3, 9):
        gem.report(0.2 * curve(gem.params["x"], level), level)
    plan = plan_of(study, [1, 2, 3, gem.number], [])
    assert plan is not None and plan.promoted == gem.number


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trial_that_has_diverged_is_not_promoted_for_what_it_might_have_been(
    monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    study = studied(16)
    broken = study.ask(KINDS)
    broken.report(value, 1)
    compared: list[FrozenTrial] = []

    def promises(_: Forecast, trials: list[FrozenTrial], *more: object) -> Any:
        compared.extend(trials)
        return np.zeros(len(trials))

    monkeypatch.setattr(Forecast, "promises", promises)
    assert plan_of(study, [1, broken.number], []) is not None
    assert study.trials[1].params in [trial.params for trial in compared]
    assert broken.params not in [trial.params for trial in compared]


def test_who_trains_goes_on_unless_another_one_promises_twice_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Forecast, "promises", lambda self, trials, *more: np.full(len(trials), -3.0))
    monkeypatch.setattr(Forecast, "needed", lambda self, trial, level, after, promise: asked.append(promise) or 0.0)
    assert plan_of(studied(16), [1, 2, 3], [15]) is not None
    assert asked and set(asked) == {-3.0 - math.log(2.0)}


@pytest.mark.parametrize(("sampler", "learned_cost"), [(optuna.samplers.RandomSampler(seed=0), True), (None, False)])
def test_without_tpe_and_learned_costs_there_is_no_plan(sampler: Any, learned_cost: bool) -> None:
    assert plan_of(studied(16, sampler), [1], [], learned_cost=learned_cost) is None


def test_there_is_no_plan_while_something_is_enqueued_or_little_is_known() -> None:
    assert plan_of(studied(5), [1], []) is None
    study = studied(16)
    study.enqueue_trial({"x": 0.5})
    assert plan_of(study, [1], []) is None


def test_a_plan_knows_branches_of_the_space() -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def space(trial: optuna.Trial) -> dict[str, object]:
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            return {"kind": "a", "x": trial.suggest_float("x", 0.0, 1.0)}
        return {"kind": "b", "n": trial.suggest_int("n", 1, 9)}

    proposer = Proposer(study, space, learned_cost=True)
    for number in range(14):
        plan = proposer.plan(RUNGS, study.trials, [], [])
        assert (plan is not None) == (number >= 8)
        made, parameters = proposer.next(plan.parameters if plan is not None else None)
        assert made.params == parameters
        made.report(1.0 + number, 1)
        made.set_user_attr(STEP_S, 1.0)
