"""A training that is a trial: what it tells the study, in SQLite and in PostgreSQL, and what it is told."""

from __future__ import annotations

import functools
import time
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution

from prefect_gpu import training_run
from prefect_gpu.lab.sandbox import wait_until
from prefect_gpu.sweeps.sweep import storage_url
from prefect_gpu.training import trial
from prefect_gpu.training.protocol import ENV_CHECKPOINTS, ENV_RUN_ID, ENV_TRIAL
from prefect_gpu.training.rungs import Rungs, asha
from prefect_gpu.training.trial import (
    COMPLETE,
    NEEDED,
    PRUNED,
    PRUNED_AT,
    STEP_S,
    STEPS,
    STOPPED,
    TRAINED,
    TrialLink,
    TrialOf,
)
from tests.postgres import PostgresServer
from tests.training.conftest import as_another_process

FROM_THE_FIRST = asha(min_steps=1)

PRUNER = "gAROLg=="  # None, pickled: rungs need none


def trained(
    storage: str, x: float, *, max_steps: int | None = None, min_steps: int | None = 1, steps: int = 9
) -> tuple[int, str | None]:
    """Train a trial whose loss is x. Returns its last step, and why it ended there."""
    study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
    trial = study.ask({"x": FloatDistribution(0.0, 9.0)})
    rungs = asha(min_steps=min_steps, max_steps=max_steps, reduction=3)
    about = TrialOf(storage, "s", trial._trial_id, trial.number, "loss", PRUNER, rungs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_TRIAL, about.as_text())
        with training_run(steps=steps) as run:
            for _ in run.steps():
                run.report(loss=x)
    return run.step, run.stopped


def be_a_trial(
    study: optuna.Study,
    storage: str,
    monkeypatch: pytest.MonkeyPatch,
    objective: str = "loss",
    rungs: Rungs = FROM_THE_FIRST,
) -> None:
    """From now on, trainings of this process are the study's next trial."""
    trial = study.ask({"x": FloatDistribution(0.0, 9.0)})
    monkeypatch.setenv(
        ENV_TRIAL, TrialOf(storage, "s", trial._trial_id, trial.number, objective, PRUNER, rungs).as_text()
    )


def in_a_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """From now on, they have a place for checkpoints. Returns what Prefect would be asked, which tests/live does."""
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path / "kept"))
    monkeypatch.setenv(ENV_RUN_ID, "the-run")
    asked: list[tuple[str, int]] = []
    monkeypatch.setattr(TrialLink, "suspend", lambda self, run_id, step: asked.append((run_id, step)))
    return asked


def test_below_the_first_rung_losses_are_taken_down_and_nobody_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, report = f"sqlite:///{tmp_path / 'study.db'}", optuna.Trial.report

    def slow(self: optuna.Trial, value: float, step: int) -> None:
        time.sleep(0.3)  # the training is at its rung by then, and must not take this for its answer there
        report(self, value, step)

    assert trained(storage, 1.0, min_steps=9, steps=20) == (20, None)
    monkeypatch.setattr(optuna.Trial, "report", slow)
    assert trained(storage, 2.0, min_steps=9, steps=20) == (9, PRUNED)
    first, second = optuna.load_study(storage=storage, study_name="s").trials
    assert set(first.intermediate_values) == {1, 3, 9} and set(second.intermediate_values) == {1, 3, 9}


def test_as_long_as_no_first_rung_is_found_a_trial_is_judged_a_ninth_of_the_way(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    assert trained(storage, 1.0, min_steps=None, steps=40) == (40, None)
    assert trained(storage, 2.0, min_steps=None, steps=40) == (3, PRUNED)
    first, second = optuna.load_study(storage=storage, study_name="s").trials
    assert set(first.intermediate_values) == {1, 3, 9, 27} and set(second.intermediate_values) == {1, 3}


def test_a_trial_whose_framework_knows_the_steps_is_looked_at_as_one_that_has_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch, "loss", asha())
    with training_run() as run:
        run.expect(40)
        for _ in run.steps():
            run.report(loss=1.0)
    [found] = optuna.load_study(storage=storage, study_name="s").trials
    assert found.user_attrs[STEPS] == 40 and set(found.intermediate_values) == {1, 3, 9, 27}


@pytest.mark.parametrize("objective", ["loss", "val_accuracy"])
def test_what_a_framework_tells_after_the_step_is_told_the_study(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Keras and Transformers do: each step is reported without a value, and some a second time, with it."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    trained(storage, 9.0)
    study = optuna.load_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch, objective)
    with training_run(steps=9) as run:
        for number in run.steps():
            run.report()
            if number % 4 == 3:
                run.report(**{objective: 10.0})
    study = optuna.load_study(storage=storage, study_name="s")
    assert (run.step, run.stopped) == (4, PRUNED) and study.trials[1].intermediate_values == {1: 10.0, 3: 10.0}


def test_a_trial_that_diverges_and_goes_on_all_the_same_is_judged_and_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    trained(storage, 9.0)
    study = optuna.load_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch)
    with training_run(steps=9, on_nonfinite="warn") as run:
        for _ in run.steps():
            run.report(loss=float("nan"))
    assert (run.step, run.stopped) == (1, PRUNED)


def test_a_training_that_reports_now_and_then_tells_the_time_of_a_step_and_its_value_at_each_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch)
    with training_run(steps=20) as run:
        for number in run.steps():
            time.sleep(0.02)
            if number % 10 == 9:
                run.report(loss=1.0)
    [found] = optuna.load_study(storage=storage, study_name="s").trials
    assert set(found.intermediate_values) == {1, 3, 9}
    begun, ended = found.user_attrs[TRAINED][0]
    assert found.user_attrs[STEP_S] < (ended - begun) / 10, "there were twenty steps, and two reports"


def follow(storage: str) -> None:
    assert trained(storage, 3.0) == (9, None), "the first is the best so far"
    assert trained(storage, 4.0) == (1, PRUNED)
    assert trained(storage, 5.0) == (1, PRUNED)
    assert trained(storage, 1.0) == (9, None)
    assert trained(storage, 6.0) == (1, PRUNED)
    assert trained(storage, 2.0) == (3, PRUNED), "the best two of six pass the first rung, the best one the second"
    assert trained(storage, 0.5, max_steps=6) == (6, COMPLETE)
    study = optuna.load_study(storage=storage, study_name="s")
    assert [trial.user_attrs.get(PRUNED_AT) for trial in study.trials] == [None, 1, 1, None, 1, 3, None]
    assert study.trials[0].intermediate_values == {1: 3.0, 3: 3.0, 9: 3.0}
    assert all(trial.user_attrs[STEP_S] >= 0.0 and trial.user_attrs[STEPS] == 9 for trial in study.trials)
    times = [at for trial in study.trials for span in trial.user_attrs[TRAINED] for at in span]
    assert len(times) == 2 * len(study.trials) and times == sorted(times)


def test_without_checkpoints_a_rung_prunes_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    follow(f"sqlite:///{tmp_path / 'study.db'}")
    assert "cannot be promoted later: the training offers no checkpoints" in caplog.text


def test_the_study_may_be_in_postgresql(postgres: PostgresServer) -> None:
    url = postgres.make("studies")
    try:
        follow(storage_url(url))
    finally:
        postgres.drop("studies")


def test_with_a_checkpoint_it_is_suspended_once_that_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    trained(storage, 0.0)
    study = optuna.load_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch)
    asked = in_a_pool(tmp_path, monkeypatch)
    with training_run(steps=9) as run:
        for number in run.steps():
            run.report(loss=1.0, checkpoint=functools.partial(Path.write_text, data=str(number)))
    assert run.stopped == STOPPED and asked == [("the-run", 1)]
    as_another_process()
    with training_run(steps=9) as run:  # promoted: it carries on, up to the next rung
        assert run.restore(Path.read_text) == "0"
        for number in run.steps():
            run.report(loss=1.0, checkpoint=functools.partial(Path.write_text, data=str(number)))
    assert run.stopped == STOPPED and asked[1:] == [("the-run", 3)]


def test_a_checkpoint_may_be_offered_in_another_report_than_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning does at the end of each epoch: such a trial can be promoted, too."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    trained(storage, 0.0)
    study = optuna.load_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch)
    asked = in_a_pool(tmp_path, monkeypatch)
    with training_run(steps=9) as run:
        _ = run.checkpoint_due  # an offer is coming
        for number in run.steps():
            run.report(loss=1.0)
            if number % 2 == 1:
                run.report(step=run.step, checkpoint=functools.partial(Path.write_text, data=str(number)))
    assert run.stopped == STOPPED and asked == [("the-run", 2)]


@pytest.mark.parametrize(
    ("direction", "value", "needed", "last"),
    [
        ("minimize", 5.0, {"1": 5.0, "3": 4.9}, 3),
        ("minimize", 0.5, {"1": 0.4}, 1),
        ("maximize", 5.0, {"1": 5.0, "3": 5.1}, 3),
        ("maximize", 9.0, {"1": 0.4, "3": 9.0}, 9),
    ],
)
def test_it_goes_on_with_a_value_as_good_as_the_sweep_has_said(
    direction: str, value: float, needed: dict[str, float], last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="s", direction=direction)
    trial = study.ask({"x": FloatDistribution(0.0, 9.0)})
    trial.set_user_attr(NEEDED, needed)
    about = TrialOf(storage, "s", trial._trial_id, trial.number, "loss", PRUNER, asha(min_steps=1))
    monkeypatch.setenv(ENV_TRIAL, about.as_text())
    in_a_pool(tmp_path, monkeypatch)
    with training_run(steps=3 if last == 3 else 9) as run:
        for number in run.steps():
            run.report(loss=value, checkpoint=functools.partial(Path.write_text, data=str(number)))
    assert run.step == last


def test_a_study_that_is_out_of_reach_stops_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    about = TrialOf("sqlite:////nowhere/study.db", "s", 1, 0, "loss", PRUNER, asha(min_steps=1))
    monkeypatch.setenv(ENV_TRIAL, about.as_text())
    with training_run(steps=9) as run:
        for _ in run.steps():
            run.report(loss=1.0)
    assert run.step == 9 and "cannot be told" in caplog.text


def test_a_study_that_is_out_of_reach_for_a_while_is_told_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that was restarted: trainings of hours were compared with nobody any more."""
    folder = tmp_path / "studies"
    folder.mkdir()
    storage = f"sqlite:///{folder / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="s")
    assert trained(storage, 0.5) == (9, None)
    be_a_trial(study, storage, monkeypatch)
    monkeypatch.setattr(trial, "_AGAIN_S", 0.05)
    folder.rename(tmp_path / "away")
    with training_run(steps=9) as run:
        for step in run.steps():
            run.report(loss=1.0)
            if step == 4:
                (tmp_path / "away").rename(folder)
                wait_until(lambda: PRUNED_AT in study.trials[1].user_attrs, what="the verdict")
    assert run.stopped == PRUNED and run.step < 9


def test_a_metric_may_be_an_array_of_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="s")
    be_a_trial(study, storage, monkeypatch, "error")
    with training_run(steps=2) as run:
        for _ in run.steps():
            run.report(error=np.array([0.5]))
    assert optuna.load_study(storage=storage, study_name="s").trials[0].intermediate_values == {1: 0.5}
