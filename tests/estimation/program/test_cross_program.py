"""One model across programs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prefect_gpu.estimation.program.cross_program import CrossProgramModel
from prefect_gpu.estimation.program.features import flatten
from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.program.regressors import REGRESSORS
from prefect_gpu.estimation.runs import MEMORY_BYTES, STEP_S, TRAINING_S
from tests.estimation.runs_of import runs_of


def _programs(names: str) -> dict[str, ProgramModel]:
    return {name: ProgramModel(runs_of(10, name, seed=ord(name)), {}) for name in names}


@pytest.fixture(scope="module")
def four() -> tuple[dict[str, ProgramModel], CrossProgramModel]:
    """Four programs that cost the same, and what is learned from all of them."""
    programs = _programs("abcd")
    return programs, CrossProgramModel(programs)


def test_fewer_than_three_programs_say_nothing_of_others() -> None:
    across = CrossProgramModel(_programs("ab"))
    assert across.chosen == {} and across.predict({"n": 1e4}) == {}
    assert CrossProgramModel({}).predict({}) == {}


@pytest.mark.slow
def test_a_program_that_nobody_has_seen_is_like_those_with_its_sizes(
    four: tuple[dict[str, ProgramModel], CrossProgramModel],
) -> None:
    _, across = four
    assert set(across.chosen.values()) <= set(REGRESSORS)
    runs = runs_of(20, "e", seed=77)
    for target in (STEP_S, MEMORY_BYTES):
        # What is learned from four of them holds for the fifth.
        off = [across.predict(flatten(run.known)[0])[target] - math.log(run.measured[target]) for run in runs]
        assert np.median(np.abs(off)) < 0.3
    facts = {**flatten(runs[0].known)[0], "@steps": 100.0}
    found = across.predict(facts)
    assert found[TRAINING_S] == pytest.approx(found[STEP_S] + math.log(100))


@pytest.mark.slow
def test_the_same_programs_in_any_order_give_the_same_model(
    four: tuple[dict[str, ProgramModel], CrossProgramModel],
) -> None:
    programs, first = four
    second = CrossProgramModel(dict(reversed(programs.items())))
    facts = flatten(runs_of(1, seed=5)[0].known)[0]
    assert first.chosen == second.chosen and first.predict(facts) == second.predict(facts)
