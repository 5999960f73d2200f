"""From which step on trials are judged: where their order is that which their learning curves lead to."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from prefect_gpu.sweeps.first_rung import FIRST_RUNG, found_by, with_first_rung
from prefect_gpu.training.rungs import asha
from prefect_gpu.training.trial import STEPS

STEPS_OF = 81
LEVELS = (1, 3, 9)


def crossing(x: float, step: int) -> float:
    """The larger x, the sooner the loss comes down, and the higher it stays."""
    return 0.05 + 0.5 * x + 2.0 * math.exp(-(0.05 + x) * step)


def parallel(x: float, step: int) -> float:
    """Who leads at the first step leads at the last one."""
    return float((0.1 + x) * step**-0.4)


def trial(losses: dict[int, float]) -> FrozenTrial:
    return create_trial(state=TrialState.PRUNED, intermediate_values=losses, user_attrs={STEPS: STEPS_OF})


def trials(curve: Callable[[float, int], float], count: int = 8, seed: int = 0) -> list[FrozenTrial]:
    chance = random.Random(seed)
    drawn = [chance.random() for _ in range(count)]
    return [trial({level: curve(x, level) for level in LEVELS}) for x in drawn]


@pytest.mark.parametrize("seed", range(8))
def test_where_curves_cross_trials_are_judged_later(seed: int) -> None:
    assert found_by(asha(), trials(parallel, seed=seed), STEPS_OF, maximize=False) == 3
    assert found_by(asha(), trials(crossing, seed=seed), STEPS_OF, maximize=False) == 9


@pytest.mark.parametrize(("curve", "level"), [(parallel, 3), (crossing, 9)])
def test_a_value_that_is_to_be_large_is_judged_as_its_opposite(curve: Any, level: int) -> None:
    found = [trial({at: -loss for at, loss in one.intermediate_values.items()}) for one in trials(curve)]
    assert found_by(asha(), found, STEPS_OF, maximize=True) == level


def test_too_few_trials_say_nothing() -> None:
    short = trial({1: 1.0, 3: 0.5})
    assert found_by(asha(), [*trials(parallel, 7), *[short] * 9], STEPS_OF, maximize=False) is None


def test_who_has_diverged_is_last_at_both_steps() -> None:
    lost = [trial({3: value, 9: value}) for value in (math.inf, math.nan)]
    assert found_by(asha(), [*trials(parallel, 12), *lost], STEPS_OF, maximize=False) == 3
    assert found_by(asha(), lost * 8, STEPS_OF, maximize=False) == 9, "all are alike: nothing is known"


@given(
    st.lists(st.tuples(st.floats(), st.floats()), min_size=8, max_size=20),
    st.integers(1, 300),
    st.integers(2, 4),
    st.booleans(),
)
def test_whatever_is_reported_one_of_the_two_steps_is_found(
    pairs: list[tuple[float, float]], steps: int, reduction: int, maximize: bool
) -> None:
    rungs = asha(reduction=reduction)
    low = rungs.lowest(steps)
    found = [trial({low: begin, low * reduction: end}) for begin, end in pairs]
    assert found_by(rungs, found, steps, maximize=maximize) in (low, low * reduction)


def test_what_is_found_is_kept_in_the_study() -> None:
    study, rungs, said = optuna.create_study(), asha(), list[int]()
    assert with_first_rung(rungs, study, []) is rungs, "each trial knows how many steps it has"
    few, crossed = trials(parallel, 3), trials(crossing)
    assert with_first_rung(rungs, study, few) == asha(min_steps=9) and FIRST_RUNG not in study.user_attrs
    for found in (trials(parallel), crossed):
        assert with_first_rung(rungs, study, found, said.append) == asha(min_steps=3), "it is found once"
    assert said == [3]
    assert with_first_rung(asha(min_steps=27), study, crossed) == asha(min_steps=27), "it was given"
