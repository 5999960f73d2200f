"""The best checkpoint is kept while a training goes on, and what Optuna's pruners do about it: with real files."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import optuna
import pytest

from prefect_gpu.training import TrainingRun, TrainingRunError, training_run
from prefect_gpu.training.best import BestKeeper
from prefect_gpu.training.callbacks.optuna import PRUNED, OptunaReporter
from prefect_gpu.training.checkpoints import CheckpointStore
from prefect_gpu.training.protocol import ENV_CHECKPOINTS, ENV_KEEP_BEST
from tests.training.conftest import Controller


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def saves(text: str, clock: Clock | None = None, seconds: float = 0.0) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        path.write_text(text)
        if clock is not None:
            clock.now += seconds

    return save


def train(run: TrainingRun, *losses: float) -> TrainingRun:
    with run:
        for _, loss in zip(run.steps(), losses, strict=False):
            run.report(loss=loss, checkpoint=saves(f"model of {loss}"))
    return run


# -- what is kept -----------------------------------------------------------------------------


def test_saving_takes_a_twentieth_of_the_time_at_most() -> None:
    clock = Clock()
    keeper = BestKeeper(None, clock)
    keeper.begin()
    spent = 0.0
    for step in range(1000):
        clock.now += 1.0
        spent += 2.0 * keeper.offer(saves("x", clock, 2.0), -float(step), step, last=False)
        assert spent <= 2.0 or spent <= 0.05 * clock.now
    assert spent > 0.03 * clock.now


def test_the_last_step_is_saved_though_there_is_no_time_for_it() -> None:
    clock = Clock()
    keeper = BestKeeper(None, clock)
    assert keeper.offer(saves("first", clock, 5.0), 0.5, 1, last=False)
    assert not keeper.offer(saves("second", clock, 5.0), 0.4, 2, last=False)
    assert keeper.offer(saves("third", clock, 5.0), 0.3, 3, last=True)
    found = keeper.restore()
    assert found is not None and (found.path.read_text(), found.step, found.loss) == ("third", 3, 0.3)


def test_what_is_worse_is_not_kept_even_at_the_end() -> None:
    keeper = BestKeeper(None)
    assert keeper.offer(saves("good"), 0.5, 1, last=False)
    assert not keeper.offer(saves("bad"), 0.6, 2, last=True)
    found = keeper.restore()
    assert found is not None and found.path.read_text() == "good"


def test_one_that_cannot_be_saved_leaves_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    keeper = BestKeeper(None)
    keeper.offer(saves("good"), 0.5, 1, last=True)
    assert not keeper.offer(lambda path: None, 0.1, 2, last=True)
    assert "could not be saved" in caplog.text
    assert keeper.loss == 0.5
    assert keeper.offer(saves("better"), 0.4, 3, last=True)


def test_a_later_try_knows_the_best_of_the_one_before(tmp_path: Path) -> None:
    BestKeeper(CheckpointStore(tmp_path)).offer(saves("good"), 0.5, 7, last=True)
    later = BestKeeper(CheckpointStore(tmp_path))
    assert later.loss == 0.5
    assert not later.offer(saves("worse"), 0.6, 1, last=True)


# -- in a training -----------------------------------------------------------------------------


def test_outside_the_pool_the_best_is_kept_for_as_long_as_the_run_object_lives() -> None:
    run = train(training_run(steps=3, keep_best=True), 0.5, 0.7, 0.1)
    assert run.best(Path.read_text) == "model of 0.1"


def test_without_asking_nothing_is_kept() -> None:
    assert train(training_run(steps=1), 0.5).best() is None
    with pytest.raises(TrainingRunError, match="best"):
        training_run(steps=1).best()


def test_a_run_that_may_be_ended_early_keeps_it_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_KEEP_BEST, "1")
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    run = train(training_run(steps=2), 0.5, 0.4)
    assert run.best(Path.read_text) == "model of 0.4"
    assert (tmp_path / "best").is_dir()
    assert training_run(steps=2, keep_best=False)._best is None


@pytest.mark.parametrize("keep", ["../up", "", 3])
def test_a_name_that_is_none_is_refused(keep: object) -> None:
    with pytest.raises(ValueError, match="keep_best="):
        training_run(keep_best=keep)  # type: ignore[arg-type]


def test_the_controllers_stop_keeps_the_last_step_if_it_is_the_best(pool: Controller) -> None:
    with training_run(steps=1000, keep_best=True) as run:
        for step in run.steps():
            run.report(loss=1.0 / (step + 1), checkpoint=saves(f"step {step}"))
            if step == 2:
                pool.instruct("stop", reason="enough")
                pool.wait_for(lambda: run._mailbox.stop)
    assert run.stopped == "enough"
    assert run.step < 1000
    assert run.best(Path.read_text) == f"step {run.step - 1}"


def test_a_training_can_stop_itself_and_the_next_one_of_the_process_is_not_stopped() -> None:
    with training_run(steps=10) as run:
        for step in run.steps():
            if step == 3:
                run.stop("I have seen enough")
            run.report(loss=1.0)
    assert (run.step, run.stopped) == (4, "I have seen enough")
    assert train(training_run(steps=10), *[1.0] * 10).step == 10


# -- Optuna -----------------------------------------------------------------------------


def study(direction: str = "minimize") -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=2)
    return optuna.create_study(direction=direction, pruner=pruner)


def objective(trial: optuna.trial.Trial, ended: dict[int, TrainingRun], raises: bool = True) -> float:
    """The first trial ends at 1; the others get stuck above it."""
    level = 1.0 if trial.number == 0 else 5.0
    with training_run(steps=20, keep_best=f"trial-{trial.number}") as run:
        reporter = OptunaReporter(run, trial)
        for epoch in run.steps():
            loss = level + 10.0 / (epoch + 1)
            reporter.report(loss, checkpoint=saves(f"trial {trial.number}, loss {loss:g}"))
    ended[trial.number] = run
    if raises:
        reporter.raise_if_pruned()
    return loss


def test_a_pruned_trial_ends_its_training_with_its_best_checkpoint_kept() -> None:
    ended: dict[int, TrainingRun] = {}
    found = study()
    found.optimize(partial(objective, ended=ended), n_trials=3)
    assert [trial.state.name for trial in found.trials] == ["COMPLETE", "PRUNED", "PRUNED"]
    assert [(run.stopped, run.step) for run in ended.values()] == [(None, 20), (PRUNED, 2), (PRUNED, 2)]
    assert ended[1].best(Path.read_text) == "trial 1, loss 10"
    assert ended[0].best(Path.read_text) == "trial 0, loss 1.5"


def test_who_likes_returns_what_was_reached_instead() -> None:
    ended: dict[int, TrainingRun] = {}
    found = study()
    found.optimize(partial(objective, ended=ended, raises=False), n_trials=2)
    assert [trial.state.name for trial in found.trials] == ["COMPLETE", "COMPLETE"]
    assert found.trials[1].value == 10.0


def test_another_value_than_the_loss_may_be_what_is_optimised() -> None:
    found = study("maximize")

    def train_for_accuracy(trial: optuna.trial.Trial) -> float:
        with training_run(steps=6) as run:
            reporter = OptunaReporter(run, trial)
            for epoch in run.steps():
                reporter.report(1.0, value=(0.9 if trial.number == 0 else 0.1) + epoch / 100)
        reporter.raise_if_pruned()
        return 0.0

    found.optimize(train_for_accuracy, n_trials=2)
    assert [trial.state.name for trial in found.trials] == ["COMPLETE", "PRUNED"]
    assert list(found.trials[0].intermediate_values) == [1, 2, 3, 4, 5, 6]


def test_a_forked_child_that_lets_go_of_it_leaves_the_best_to_its_parent() -> None:
    keeper = BestKeeper(None)
    assert keeper.offer(partial(Path.write_text, data="the best"), 0.5, 1, last=True)
    child = os.fork()
    if child == 0:
        del keeper
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    found = keeper.restore()
    assert found is not None and found.path.read_text() == "the best"
