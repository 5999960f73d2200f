"""Why a run is estimated as it is."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from prefect_gpu.estimation.estimator import Estimator
from prefect_gpu.estimation.explanation import explain
from prefect_gpu.estimation.runs import LAUNCHING_S, MEMORY_BYTES, STEP_S, TRAINING_S, FinishedRun, Known


def _run(at: int, width: int, epochs: int, *, program: str = "train", noise: float = 0.0) -> FinishedRun:
    """Takes width/100 seconds a step, 100 steps an epoch, 10 MB for each unit of width; its seed says nothing."""
    step_s = width / 100 * math.exp(noise)
    parameters = {
        "model": {"width": width},
        "epochs": epochs,
        "seed": at * 7919 % 101,
        "data": "mnist",
        "tag": f"t{at}",
    }
    measured = {
        LAUNCHING_S: 2.0, STEP_S: step_s, TRAINING_S: step_s * 100 * epochs, MEMORY_BYTES: width * 1e7,
    }  # fmt: skip
    return FinishedRun(f"run-{at}", Known(program, parameters, {"steps": 100 * epochs}), measured, ended_at=at)


def _runs(count: int, program: str = "train") -> list[FinishedRun]:
    chance = np.random.default_rng(5)
    return [
        _run(
            at,
            int(2 ** chance.integers(3, 9)),
            int(chance.integers(1, 30)),
            program=program,
            noise=chance.normal(0, 0.05),
        )
        for at in range(count)
    ]


def _asked(width: int = 64, epochs: int = 10, **others: object) -> Known:
    return Known(
        "train", {"model": {"width": width}, "epochs": epochs, "seed": 3, "data": "mnist", "tag": "new", **others}
    )


@pytest.fixture(scope="module")
def learned() -> Estimator:
    return Estimator(_runs(24))


def test_what_all_runs_measured_alike_is_expected_again(learned: Estimator) -> None:
    launching = explain(learned, _asked()).estimate.targets[LAUNCHING_S]
    assert (launching.low, launching.median, launching.high) == pytest.approx((2.0, 2.0, 2.0))


def test_the_estimate_is_the_estimators(learned: Estimator) -> None:
    assert explain(learned, _asked()).estimate == learned.estimate(_asked())


def test_the_runs_most_like_it_come_first(learned: Estimator) -> None:
    like = _runs(24)[7]
    found = explain(learned, like.known, most_neighbours=4).neighbours
    assert found[0].run_id == "run-7" and found[0].distance == pytest.approx(0, abs=1e-6) and not found[0].differing
    assert found[0].measured == like.measured
    distances = [one.distance for one in found]
    assert len(found) == 4 and distances == sorted(distances)


def test_only_what_may_matter_is_said_to_differ(learned: Estimator) -> None:
    nearest = explain(learned, _asked(width=63)).neighbours[0]
    assert next(iter(nearest.differing)) == "model.width"  # what matters most
    assert nearest.differing["model.width"][1] == 63.0
    assert "data" not in nearest.differing and "tag" not in nearest.differing and "steps" not in nearest.differing


def test_what_never_differed_before_is_said_to_differ(learned: Estimator) -> None:
    for one in explain(learned, _asked(data="imagenet", mixup=True)).neighbours:
        assert one.differing["data"] == ("mnist", "imagenet")
        assert one.differing["mixup"] == (None, 1.0)


def test_the_columns_that_matter_are_named(learned: Estimator) -> None:
    matters = explain(learned, _asked()).matters
    for target in (STEP_S, MEMORY_BYTES):
        assert next(iter(matters[target])) == "model.width" and matters[target]["model.width"] > 0.8
        assert sum(matters[target].values()) <= 1 + 1e-9


def test_how_declared_values_follow_is_said(learned: Estimator) -> None:
    [steps] = explain(learned, _asked(epochs=12)).deduced
    assert (steps.name, steps.rule, steps.runs) == ("steps", "100 × epochs", 24)
    assert steps.value == pytest.approx(1200)
    [unknown] = explain(learned, Known("train", {})).deduced
    assert unknown.value is None


def test_how_good_it_is_is_measured_on_runs_left_out(learned: Estimator) -> None:
    found = explain(learned, _asked()).left_out
    assert found[TRAINING_S] == found[STEP_S]  # training is steps of that length
    assert found[STEP_S].runs == 24
    assert 0.01 < found[STEP_S].error < 0.1  # the noise is 5 %
    assert 0.8 <= found[STEP_S].within <= 1.0
    assert found[MEMORY_BYTES].error < 0.01


def test_errors_of_fractions_are_parts_of_what_was_measured() -> None:
    runs = [
        FinishedRun(f"{at}", Known("train", {"lr": 0.1}), {"utilisation": 0.5 + 0.1 * (-1) ** at}, ended_at=at)
        for at in range(10)
    ]
    found = explain(Estimator(runs), Known("train", {"lr": 0.1})).left_out["utilisation"]
    # The others' mean is 0.489 or 0.511: 0.111 off of 0.6 or of 0.4.
    assert found.error == pytest.approx((0.111 / 0.6 + 0.111 / 0.4) / 2, rel=0.05)


def test_a_few_runs_do_not_tell_what_matters_or_how_good_it_is() -> None:
    found = explain(Estimator(_runs(3)), _asked())
    assert len(found.neighbours) == 3 and not found.matters and not found.left_out


@pytest.mark.slow
def test_of_a_program_that_is_new_the_choice_across_programs_is_told() -> None:
    runs = [
        replace(run, run_id=f"{name}-{run.run_id}", measured={MEMORY_BYTES: run.measured[MEMORY_BYTES]})
        for name in "abc"
        for run in _runs(3, name)
    ]
    estimator = Estimator(runs)
    found = explain(estimator, _asked())
    assert found.regressors == estimator.cross_program.chosen and list(found.regressors) == [MEMORY_BYTES]
    assert not found.neighbours and not found.deduced and found.estimate.from_runs == 0


def test_a_run_that_ran_out_of_memory_is_marked() -> None:
    failed = FinishedRun(
        "oom", _asked(epochs=11), {MEMORY_BYTES: 5e9}, completed=False, out_of_memory=True, ended_at=99
    )
    only = explain(Estimator([failed]), _asked()).neighbours
    assert [one.out_of_memory for one in only] == [True] and only[0].measured[MEMORY_BYTES] > 5e9


def test_without_any_history_nothing_is_known() -> None:
    found = explain(Estimator([]), _asked())
    assert not found.estimate.targets and not found.neighbours and not found.regressors
