"""Pollux' seven parameters, from what was measured."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from prefect_gpu.estimation.goodput.step_time import StepTime


def truth(nodes: int, gpus: int, local: int) -> tuple[float, float]:
    """Seconds of a step and of its computing, of a program that has Pollux' form."""
    compute = 0.05 + 0.002 * local
    network = 0.0 if gpus == 1 else 0.02 + 0.001 * (gpus - 2) if nodes == 1 else 0.09 + 0.003 * (gpus - 2)
    return (compute**1.8 + network**1.8) ** (1 / 1.8), compute


def measured(setups: Iterable[tuple[int, int, int]]) -> StepTime:
    steps = StepTime()
    for setup in setups:
        step_s, compute_s = truth(*setup)
        steps.report(*setup, step_s, step_s - compute_s)
    return steps


@pytest.mark.parametrize("setup", [(1, 1, 100), (1, 3, 20), (4, 16, 40), (8, 32, 200)])
def test_other_setups_are_foretold_from_a_dozen(setup: tuple[int, int, int]) -> None:
    steps = measured(
        (nodes, gpus, local) for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 8), (3, 12)) for local in (10, 50, 150)
    )
    step, compute = steps.predict(*setup[:2], np.array([setup[2]]))
    assert (step[0], compute[0]) == pytest.approx(truth(*setup), rel=0.1)


def test_before_anything_was_measured_over_nodes_it_is_expected_to_be_slower_than_within_one() -> None:
    steps = measured([(1, 1, 10), (1, 1, 50)])
    within, between = (steps.predict(nodes, 4, np.array([50]))[0][0] for nodes in (1, 2))
    assert truth(1, 1, 50)[0] < within < between < 2 * within


def test_only_what_is_a_surprise_changes_the_prediction() -> None:
    steps = measured((1, gpus, local) for gpus in (1, 2, 4) for local in (10, 30, 50, 100))
    steps.predict(1, 1, np.array([10]))
    before = steps.version
    for setup, slower in (((1, 3, 40), 1.0), ((1, 4, 70), 2.0)):
        step_s, compute_s = truth(*setup)
        steps.report(*setup, step_s * slower, step_s * slower - compute_s)
        assert steps.version == before + (slower > 1)


def test_a_step_that_is_all_waiting_says_nothing() -> None:
    steps = StepTime()
    steps.report(1, 2, 10, 0.1, 0.1)
    assert not steps.known
