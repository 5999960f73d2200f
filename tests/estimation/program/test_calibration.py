"""How wide intervals must be."""

from __future__ import annotations

import numpy as np
import pytest

from prefect_gpu.estimation.program.calibration import Calibration, reach
from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import LAUNCHING_S, STEP_S, TRAINING_S, UTILISATION_STD
from tests.estimation.runs_of import runs_of


def test_a_reach_holds_for_the_part_that_was_asked() -> None:
    errors = np.random.default_rng(0).normal(size=5000)
    assert reach(errors, 0.9) == pytest.approx(1.645, rel=0.05)
    assert reach(-np.arange(1.0, 100.0), 0.9) == 90.0


def test_few_errors_are_not_believed_alone() -> None:
    assert reach([], 0.9) == reach([], 0.5, untried=4.0) == 4.0
    reaches = [reach([1.0] * count, 0.9, untried=4.0) for count in (1, 4, 11, 12)]
    assert reaches == sorted(reaches, reverse=True) and reaches[0] > 3.5 and reaches[-1] == 1.0


def test_large_errors_count_even_if_there_are_few() -> None:
    assert reach([10.0], 0.9, untried=4.0) == 10.0


def test_programs_with_few_runs_are_never_called_more_certain_than_known_ones() -> None:
    calibration = Calibration({"train": ProgramModel(runs_of(16), {})}, {}, 0.9)
    assert all(calibration.few[target] >= calibration.known[target] for target in calibration.known)
    assert 1.0 < calibration.known[STEP_S] < 4.0
    assert calibration.known[TRAINING_S] == calibration.known[STEP_S]
    assert calibration.known[UTILISATION_STD] == reach([], 0.9)
    assert calibration.known[LAUNCHING_S] > 0
