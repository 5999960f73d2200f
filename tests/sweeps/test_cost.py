"""Which of several proposals is tried next: what promises most per second, as learned from the study's own trials."""

from __future__ import annotations

import logging
import random

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from prefect_gpu.sweeps.cost import best_per_second, comparable, seconds, start_seconds
from prefect_gpu.sweeps.proposals import Proposer
from prefect_gpu.training.trial import STEP_S, TRAINED

KINDS = {"x": FloatDistribution(0.0, 1.0), "size": FloatDistribution(1.0, 100.0, log=True)}


def trial(number: int, x: float, size: float, loss: float | None = None, step_s: float | None = None) -> FrozenTrial:
    made = create_trial(
        params={"x": x, "size": size},
        distributions=KINDS,
        value=loss,
        state=TrialState.COMPLETE if loss is not None else TrialState.PRUNED,
        user_attrs={} if step_s is None else {STEP_S: step_s},
    )
    made.number = number
    return made


def earlier(count: int = 20) -> list[FrozenTrial]:
    """The loss follows from x alone, the cost from the size alone."""
    chance = random.Random(0)
    drawn = [(chance.random(), 100 ** chance.random()) for _ in range(count)]
    return [trial(n, x, size, (x - 0.3) ** 2, 0.01 * size) for n, (x, size) in enumerate(drawn)]


def test_of_two_that_promise_as_much_the_cheaper_is_taken_and_of_two_that_cost_as_much_the_better() -> None:
    known = earlier()
    assert best_per_second(known, [trial(90, 0.3, 80.0), trial(91, 0.3, 2.0)], maximize=False) == 1
    assert best_per_second(known, [trial(90, 0.9, 10.0), trial(91, 0.3, 10.0)], maximize=False) == 1
    assert best_per_second(known, [trial(90, 0.95, 10.0), trial(91, 0.3, 10.0)], maximize=True) == 0


def test_what_is_cheap_and_promises_nothing_is_not_taken() -> None:
    assert best_per_second(earlier(), [trial(90, 0.95, 2.0), trial(91, 0.3, 20.0)], maximize=False) == 1


def launched(*spans: tuple[float, float | None]) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, user_attrs={TRAINED: [list(span) for span in spans]})


@given(st.integers(1, 4), st.floats(0.0, 20.0), st.floats(0.5, 60.0))
def test_what_a_start_costs_is_seen_in_the_trainings_whatever_else_there_is(
    devices: int, start_s: float, trains_s: float
) -> None:
    known = []
    for device in range(devices):
        begins = 100.0 + device * trains_s / devices
        for _ in range(12):
            known.append(launched((begins, begins + trains_s)))
            begins += trains_s + start_s
    assert start_seconds(known) == pytest.approx(start_s, rel=0.3, abs=0.5 * trains_s)
    alone = launched((1e6, 1e6 + 1.0), (1e6 + 1.0 + start_s, None))  # the next day
    assert start_seconds([*known, alone]) == pytest.approx(start_seconds(known), rel=0.3, abs=0.5 * trains_s)


def test_what_a_start_costs_is_not_known_of_a_few() -> None:
    assert start_seconds([]) is None
    assert start_seconds([launched((0.0, 1.0), (3.0, 4.0)), launched((6.0, None))]) is None
    in_turn = [launched((10.0 * n, 10.0 * n + 7.0)) for n in range(9)]
    assert start_seconds(in_turn) == pytest.approx(3.0)


def test_the_samplers_own_choice_stands_as_long_as_little_is_known() -> None:
    assert best_per_second(earlier(7), [trial(90, 0.9, 80.0), trial(91, 0.3, 2.0)], maximize=False) == 0


def test_of_the_copies_in_which_proposals_are_made_nothing_is_said() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO)
    logging.getLogger("optuna").addHandler(handler)
    try:
        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        assert len(said) == 1, "else this would be about something else"
        Proposer(study, {"x": (0.0, 1.0)}, learned_cost=True).next()
        assert optuna.logging.get_verbosity() == optuna.logging.INFO
    finally:
        logging.getLogger("optuna").removeHandler(handler)
        optuna.logging.set_verbosity(before)
    assert len(said) == 1


def test_trials_that_were_stopped_are_compared_where_enough_have_been() -> None:
    known = []
    for number in range(12):
        steps = {1: 1.0 + number, 3: 0.5 + number} if number < 9 else {1: 1.0 + number}
        made = create_trial(state=TrialState.PRUNED, intermediate_values=steps, params={}, distributions={})
        made.number = number
        known.append(made)
    assert comparable(known, maximize=False) == {number: 0.5 + number for number in range(9)}
    assert comparable(known[4:], maximize=True)[5] == -6.0, "too few at step 3"


def test_seconds_of_steps_count_more_than_those_of_runs() -> None:
    one = trial(0, 0.1, 2.0, 0.5)
    one.user_attrs["run_s"] = 7.0
    assert seconds([one]) == {0: 7.0}
    assert seconds([one, trial(1, 0.1, 2.0, 0.5, 0.25)]) == {1: 0.25}


@pytest.mark.parametrize("learned_cost", [True, False])
def test_a_study_with_choices_and_branches_is_proposed_for(learned_cost: bool) -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

    def space(trial: optuna.Trial) -> dict[str, object]:
        if trial.suggest_categorical("kind", ["a", "b"]) == "a":
            return {"kind": "a", "x": trial.suggest_float("x", 0.0, 1.0)}
        return {"kind": "b", "n": trial.suggest_int("n", 1, 9)}

    proposer = Proposer(study, space, learned_cost=learned_cost)
    for number in range(14):
        made, parameters = proposer.next()
        assert made.number == number and made.params == parameters
        made.report(1.0, 1)
        if number % 3:  # the others stop at a rung: they are not over
            made.set_user_attr(STEP_S, 0.1 + number)
            study.tell(made, float(number))
    assert {type(kind) for one in study.trials for kind in one.distributions.values()} >= {CategoricalDistribution}


def test_what_was_enqueued_comes_first() -> None:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.enqueue_trial({"x": 0.125, "size": 2.0})
    assert Proposer(study, KINDS, learned_cost=True).next()[1] == {"x": 0.125, "size": 2.0}
