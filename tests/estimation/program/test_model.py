"""What the runs of one program say about its next ones."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from prefect_gpu.estimation.program.gaussian_process import MOST_RUNS
from prefect_gpu.estimation.program.model import ProgramModel
from prefect_gpu.estimation.runs import MEMORY_BYTES, STEP_S, TRAINING_S, UTILISATION, Known
from tests.estimation.runs_of import asked, runs_of


@pytest.fixture(scope="module")
def model() -> ProgramModel:
    return ProgramModel(runs_of(30, noise=0.02), {})


def test_what_matters_is_found(model: ProgramModel) -> None:
    [first, second, *_] = [name for name, _ in model.relevance(STEP_S)]
    assert {first, second} == {"batch_size", "width"}
    assert model.relevance(UTILISATION)[0][0] == "batch_size"
    assert sum(share for _, share in model.relevance(STEP_S)) == pytest.approx(1.0)


def test_training_is_steps_times_seconds_per_step(model: ProgramModel) -> None:
    assert TRAINING_S not in model.models and model.rules["@steps"].describe() == "epochs × ⌈n ÷ batch_size⌉"
    row, facts, _ = model.row(Known("train", {"n": 64_000, "batch_size": 64, "epochs": 3, "width": 64}))
    found = model.predict(row, facts)
    assert found[TRAINING_S].mean == pytest.approx(found[STEP_S].mean + math.log(3000), abs=0.02)


def test_what_a_run_declares_counts_before_what_is_deduced(model: ProgramModel) -> None:
    known = Known("train", {"n": 64_000, "batch_size": 64, "epochs": 3, "width": 64}, {"steps": 10})
    row, facts, _ = model.row(known)
    found = model.predict(row, facts)
    assert found[TRAINING_S].mean == pytest.approx(found[STEP_S].mean + math.log(10))


def test_a_run_is_its_own_nearest_neighbour(model: ProgramModel) -> None:
    run = model.runs[4]
    row, _, _ = model.row(asked(run))
    neighbours = model.neighbours(row, MEMORY_BYTES, 5)
    away = [distance for _, distance in neighbours]
    assert neighbours[0][0] == run and away[0] == pytest.approx(0, abs=0.01) and away == sorted(away)


def test_a_target_that_some_runs_lack_is_learned_from_the_others() -> None:
    runs = runs_of(12)
    runs = [replace(run, measured={STEP_S: run.measured[STEP_S]}) for run in runs[:4]] + runs[4:]
    model = ProgramModel(runs, {})
    assert model.rows(MEMORY_BYTES) == list(range(4, 12)) and len(model.rows(STEP_S)) == 12


@pytest.mark.slow
def test_only_the_newest_runs_are_learned_from() -> None:
    runs = runs_of(MOST_RUNS + 10)
    assert ProgramModel(runs, {}).runs == tuple(runs[10:])
