"""Rungs: who goes on, who stops, and who is promoted later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_gpu.training.rungs import Rungs, asha

RUNGS = asha(min_steps=1, max_steps=27, reduction=3)


def at(level: int, *losses: float) -> dict[int, dict[int, float]]:
    """Trials that have reached a rung, and so those below it, with these losses."""
    steps = [step for step in (1, 3, 9) if step <= level]
    return {number: dict.fromkeys(steps, loss) for number, loss in enumerate(losses)}


def test_one_of_three_goes_on_as_soon_as_three_are_there() -> None:
    assert not RUNGS.goes_on(0, at(1, 0.1)) and not RUNGS.goes_on(0, at(1, 0.1, 0.2))
    three = at(1, 0.3, 0.1, 0.2)
    assert [trial for trial in three if RUNGS.goes_on(trial, three)] == [1]
    assert RUNGS.goes_on(0, at(1, 0.1, 0.2), at_least=1), "whoever has no second chance: the best goes on"
    assert not RUNGS.goes_on(1, at(1, 0.1, 0.2), at_least=1)


def test_the_highest_rung_is_promoted_from_first_and_in_it_the_best() -> None:
    reached = at(1, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    assert RUNGS.promotion([0, 1, 2], reached) == 0
    assert RUNGS.promotion([1, 2], reached) == 1
    assert RUNGS.promotion([2, 3, 4, 5], reached) is None
    above = {number + 6: values for number, values in at(3, 1.0, 1.1, 1.2).items()}
    assert RUNGS.promotion([0, 6], reached | above) == 6, "worse, but higher"


def test_a_trial_is_compared_with_those_of_its_bracket_alone() -> None:
    rungs = Rungs(min_steps=1, reduction=3, brackets=2)
    low = [trial for trial in range(40) if rungs.bracket(trial) == 0]
    high = [trial for trial in range(40) if rungs.bracket(trial) == 1]
    assert len(low) > len(high) > 0
    assert next(rungs.levels(low[0])) == 1 and next(rungs.levels(high[0])) == 3
    reached = {low[0]: {1: 5.0, 3: 5.0}, **{trial: {3: 1.0} for trial in high[:3]}}
    assert rungs.highest(low[0], reached[low[0]]) == 3
    assert not rungs.goes_on(low[0], reached), "it is alone there"
    assert rungs.goes_on(high[0], reached)


@given(st.integers(1, 30), st.integers(2, 4), st.integers(0, 20))
def test_below_its_first_rung_a_trial_is_not_judged(least: int, reduction: int, trial: int) -> None:
    rungs = Rungs(min_steps=least, reduction=reduction, brackets=2)
    first = next(rungs.levels(trial))
    below = rungs.below(trial, 0, 1000)
    assert below == sorted(set(below)) and all(1 <= step < first for step in below)
    assert not set(below) & set(rungs.between(trial, 0, 1000))
    assert below + rungs.between(trial, 0, 1000) == [
        step for step in range(1, 1001) if rungs.below(trial, step - 1, step) or rungs.between(trial, step - 1, step)
    ]
    assert rungs.highest(trial, dict.fromkeys(below, 1.0)) is None


@pytest.mark.parametrize(
    ("rungs", "steps", "levels"),
    [
        (asha(), 81, [9, 27]),
        (asha(), 100, [9, 27, 81]),
        (asha(), 3, []),
        (asha(reduction=2), 80, [20, 40]),
        (asha(max_steps=30), 81, [3, 9, 27]),
        (asha(max_steps=30), None, [3, 9, 27]),
        (asha(min_steps=2, max_steps=30), 81, [2, 6, 18]),
        (asha(brackets=2, max_steps=30), 81, [1, 3, 9, 27]),
    ],
)
def test_until_a_first_rung_is_found_the_higher_of_two_steps_is(rungs: Rungs, steps: int, levels: list[int]) -> None:
    assert rungs.judging(steps).ahead(0, 0, steps or 30)[:-1] == levels


def test_a_training_of_unknown_length_has_its_first_rung_at_its_first_step() -> None:
    assert asha().judging(None).min_steps == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_as_many_go_on_as_are_meant_to(losses: list[float]) -> None:
    reached = at(1, *losses)
    going = [trial for trial in reached if RUNGS.goes_on(trial, reached)]
    assert len(going) == len(losses) // 3
    stay = [losses[trial] for trial in reached if trial not in going]
    assert all(losses[trial] <= min(stay) for trial in going)


@given(st.integers(1, 5), st.integers(0, 90), st.integers(0, 90))
def test_no_rung_is_missed_and_none_is_met_twice(least: int, middle: int, more: int) -> None:
    rungs = asha(min_steps=least, max_steps=100)
    first, second = rungs.between(0, 0, middle), rungs.between(0, middle, middle + more)
    assert first + second == rungs.between(0, 0, middle + more)
    assert not set(first) & set(second)


@pytest.mark.parametrize("wrong", [{"min_steps": 0}, {"reduction": 1}, {"brackets": 0}, {"max_steps": 1}])
def test_what_makes_no_sense_is_refused_by_name(wrong: dict[str, int]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=rf"asha\({name}="):
        asha(**wrong)
