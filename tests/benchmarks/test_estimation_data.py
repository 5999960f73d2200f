"""The table of the real trainings, and the programs that it came from."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.estimation.collect import collect
from benchmarks.estimation.programs.spaces import SPACES, submission
from benchmarks.estimation.table import read_progress, read_runs
from prefect_gpu.estimation.runs import CPU_CORES, LAUNCHING_S, MEMORY_BYTES, SAVING_S, STEP_S, TRAINING_S


def test_the_table_is_complete() -> None:
    runs = [run for run in read_runs() if run.completed]
    programs = Counter(run.known.program for run in runs)
    assert len(runs) >= 400 and len(programs) >= 10 and min(programs.values()) >= 20
    assert len({run.run_id for run in runs}) == len(runs)
    for run in runs:
        assert set(run.measured) == {LAUNCHING_S, STEP_S, TRAINING_S, SAVING_S, MEMORY_BYTES, CPU_CORES}
        assert all(math.isfinite(value) and value > 0 for value in run.measured.values()), run.run_id
        assert run.steps == run.known.parameters["steps"] == run.known.declared["steps"]


def test_progress_goes_on_until_the_end() -> None:
    training_s = {run.run_id: run.measured[TRAINING_S] for run in read_runs() if run.completed}
    progress = read_progress()
    assert set(progress) == set(training_s)
    for run_id, at in progress.items():
        times = [at[percent] for percent in sorted(at)]
        assert times == sorted(times) and times[0] > 0 and times[-1] < training_s[run_id], run_id


def test_a_submission_follows_from_its_number_and_every_program_has_its_turn() -> None:
    first = [submission(number, seed=5) for number in range(2 * len(SPACES))]
    assert first == [submission(number, seed=5) for number in range(2 * len(SPACES))]
    assert set(Counter(program for _module, program, _parameters in first).values()) == {2}
    assert first[0] != submission(0, seed=6)


@pytest.mark.slow
async def test_a_program_is_run_and_measured(tmp_path: Path) -> None:
    await collect(len(SPACES), tmp_path, seed=3, only={"gradient_boosting"}, tries=1)
    [run] = read_runs(tmp_path / "runs.csv")
    assert run.completed and run.known.program == "gradient_boosting" and run.steps == run.known.parameters["steps"]
    assert run.measured[TRAINING_S] > 0 and run.measured[MEMORY_BYTES] > 50e6
    assert len(read_progress(tmp_path / "runs.csv")[run.run_id]) == 10
    await collect(len(SPACES), tmp_path, seed=3, only={"gradient_boosting"})
    assert len(read_runs(tmp_path / "runs.csv")) == 1, "what has a row is not run again"
