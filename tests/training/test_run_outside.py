"""Outside the pool: the same function, no thread, no socket."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from prefect_gpu.training import NonFiniteLoss, TrainingRunError, training_run
from prefect_gpu.training.protocol import ENV_BATCH_SIZE, ENV_CHECKPOINTS, ENV_SAVED
from tests.training.conftest import as_another_process


def test_the_whole_surface_does_nothing_but_count() -> None:
    threads = threading.active_count()
    with training_run(steps=3, batch_size=32, features={"layers": 2}, checkpoint_every=60) as run:
        assert run.restore() is None
        assert run.restore(lambda path: path) is None
        run.ready()
        run.ready()
        seen = []
        for step in run.steps():
            seen.append(step)
            run.report(loss=1.0, checkpoint=lambda path: pytest.fail("nobody asked"), accuracy=0.5)
    with run.saving():
        pass
    assert seen == [0, 1, 2]
    assert (run.step, run.steps_left, run.stopped, run.stop_requested) == (3, 0, None, False)
    assert threading.active_count() == threads


def test_importing_costs_little() -> None:
    code = (
        "import sys, threading; import prefect_gpu.training; print(threading.active_count(), [name for name in "
        "('websockets', 'prefect', 'pydantic', 'numpy', 'torch', 'xgboost', 'asyncio', 'pynvml') "
        "if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "1 []"


def test_steps_that_do_not_report_are_counted() -> None:
    with training_run(steps=4) as run:
        for _ in run.steps():
            pass
    assert run.step == 4


def test_without_a_total_the_loop_decides() -> None:
    with training_run() as run:
        assert run.steps_left is None
        for step in run.steps():
            run.report(loss=1.0)
            if step == 6:
                break
    assert run.step == 7


def test_a_loop_of_its_own_counts_reports_or_says_the_step() -> None:
    with training_run(steps=10) as run:
        run.ready()
        run.report(loss=1.0)
        run.report(loss=1.0)
        assert run.step == 2
        run.report(loss=1.0, step=np.int64(9))
        assert run.step == 9


def test_several_reports_of_one_step_and_one_after_the_loop_are_no_further_steps() -> None:
    with training_run(steps=2) as run:
        for _ in run.steps():
            run.report(loss=1.0)
            run.report(accuracy=0.5)
        run.report(accuracy=0.9)
    assert run.step == 2


def test_a_step_number_of_another_unit_does_not_end_the_loop() -> None:
    with training_run(steps=3) as run:
        assert [run.report(step=1000 * step) for step in run.steps()] == [None] * 3


@pytest.mark.parametrize("loss", [1, 1.5, np.float32(1.5), np.array(1.5), np.array([1.5]), True])
def test_numbers_of_any_library_are_taken(loss: object) -> None:
    with training_run() as run:
        run.ready()
        run.report(loss=loss, metric=loss)


@pytest.mark.parametrize("loss", ["0.5", [0.5], np.zeros(3), 1j, object()])
def test_what_is_no_number_is_named(loss: object) -> None:
    with training_run() as run:
        run.ready()
        with pytest.raises(TypeError, match=r"loss=.*is not a number: pass a float"):
            run.report(loss=loss)
        with pytest.raises(TypeError, match=r"accuracy=.*is not a number"):
            run.report(accuracy=loss)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400])
def test_a_diverged_training_stops_with_a_remedy(loss: float) -> None:
    with pytest.raises(NonFiniteLoss, match=r"at step 2 is not a finite number.*on_nonfinite='warn'") as caught:
        with training_run(steps=5) as run:
            for step in run.steps():
                run.report(loss=loss if step == 1 else 1.0)
    assert caught.value.step == 2
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_second_loop_over_a_training_that_is_done_says_that_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with training_run(steps=3) as run:
        assert len(list(run.steps())) == 3 and not caplog.text
        assert not list(run.steps())
    assert caplog.messages == [
        "steps() has no steps left: another loop has done all 3. Call training_run() again for another training."
    ]


def test_a_diverged_training_may_go_on_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with training_run(steps=5, on_nonfinite="warn") as run:
        for _ in run.steps():
            run.report(loss=math.nan, f1=math.nan)
    assert run.step == 5
    assert len(caplog.records) == 1 and "loss=nan at step 1" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": -1},
        {"steps": "ten"},
        {"steps": 2.5},
        {"steps": True},
        {"batch_size": 0},
        {"batch_size": "32"},
        {"checkpoint_every": 0},
        {"checkpoint_every": math.nan},
        {"checkpoint_every": "1h"},
        {"on_nonfinite": "ignore"},
        {"features": [1]},
        {"features": {"data": [1, 2]}},
        {"features": {1: 2}},
        {"features": {"x": math.nan}},
        {"features": {"x": "y" * 20_000}},
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        training_run(**arguments)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    features = {"rows": np.int64(5), "dropout": np.float32(0.5)}
    arguments = training_run(steps=np.int64(3), checkpoint_every=np.int64(600), features=features)._arguments
    assert json.dumps([arguments.steps, arguments.checkpoint_every, arguments.features]) == (
        '[3, 600.0, {"rows": 5, "dropout": 0.5}]'
    )
    with pytest.raises(ValueError, match="not finite"):
        training_run(features={"rows": np.float32("inf")})


def test_calls_at_the_wrong_time_say_when_the_right_time_is() -> None:
    run = training_run(steps=1)
    for call in (run.report, run.ready, run.restore, lambda: next(run.steps())):
        with pytest.raises(TrainingRunError, match="with training_run"):
            call()
    with pytest.raises(TrainingRunError, match="before training"), run.saving():
        pass
    with run:
        with pytest.raises(TrainingRunError, match=r"call run\.ready\(\)"):
            run.report(loss=1.0)
        run.ready()
        with pytest.raises(TrainingRunError, match="before ready"):
            run.restore()
        with pytest.raises(ValueError, match="step=-1"):
            run.report(step=-1)
        with pytest.raises(ValueError, match=r"step=1\.5"):
            run.report(step=1.5)  # type: ignore[arg-type]
        with run.saving():
            with pytest.raises(TrainingRunError, match="after saving"):
                run.report(loss=1.0)
            with pytest.raises(TrainingRunError, match="after saving"):
                run.ready()
    with pytest.raises(TrainingRunError, match="outside"):
        run.report(loss=1.0)
    with pytest.raises(TrainingRunError, match="used before"), run:
        pass


def test_nesting_is_an_error_everywhere_and_one_after_another_is_fine() -> None:
    for _ in range(2):
        with training_run(steps=1) as run:
            with pytest.raises(TrainingRunError, match="inside another"), training_run(steps=1):
                pass
            for _ in run.steps():
                run.report()
        assert run.step == 1


def test_trainings_in_parallel_threads_do_not_know_each_other() -> None:
    barrier, done = threading.Barrier(2), []

    def train() -> None:
        with training_run(steps=2) as run:
            barrier.wait(30)
            done.extend(run.steps())

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 0, 1, 1]


def test_an_exception_passes_through_untouched() -> None:
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught, training_run(steps=1):
        raise error
    assert caught.value is error
    with pytest.raises(KeyError) as caught:
        with training_run(steps=1) as run:
            pass
        with run.saving():
            raise error
    assert caught.value is error


def test_with_a_folder_checkpoints_are_saved_and_restored_out_of_the_pool_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    with training_run(steps=5, checkpoint_every=1e-9) as run:
        for step in run.steps():
            run.report(checkpoint=lambda path, step=step: path.write_text(f"after {step}"))
            if step == 2:
                break
    as_another_process()
    with training_run(steps=5) as run:
        assert run.restore(Path.read_text) == "after 2"
        assert list(run.steps()) == [3, 4]
    as_another_process()
    with training_run(steps=3) as run:
        assert isinstance(run.restore(), Path)
        assert list(run.steps()) == []


def test_each_training_of_a_process_carries_on_from_its_own_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the folds of a cross-validation: a fold that took over another one's model would know what it is tested on."""
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    folds = ("first", "second", "third")
    for fold in folds:
        with training_run(steps=2, checkpoint_every=1e-9, keep_best=True) as run:
            assert run.restore() is None, f"of another training than the {fold}"
            for _ in run.steps():
                run.report(loss=1.0 if fold == "second" else 0.5, checkpoint=partial(Path.write_text, data=fold))
        assert run.best(Path.read_text) == fold
    as_another_process()
    for fold in folds:
        with training_run(steps=2) as run:
            assert run.restore(Path.read_text) == fold and not list(run.steps())


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine where the folder is not mounted."""
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path / "not-mounted"))
    monkeypatch.setenv(ENV_SAVED, "40")
    with training_run(steps=5, checkpoint_every=1e-9) as run:
        assert run.restore() is None
        for _ in run.steps():
            run.report()
    [told] = caplog.messages
    assert told.startswith("This run had saved step 40") and "not-mounted" in told
    with training_run(steps=2) as run:  # of which nothing was ever said
        assert run.restore() is None
    assert len(caplog.messages) == 1


def test_a_run_whose_second_training_had_saved_has_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    with training_run(steps=1) as run:
        run.ready()
    with training_run(steps=1, checkpoint_every=1e-9) as run:
        for _ in run.steps():
            run.report(checkpoint=partial(Path.write_text, data="second"))
    as_another_process()
    monkeypatch.setenv(ENV_SAVED, "1")
    with training_run(steps=1) as run:
        assert run.restore() is None
    assert not caplog.messages


def test_a_checkpoint_that_cannot_be_saved_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))

    def fail(path: Path) -> None:
        raise OSError("No space left on device")

    with training_run(steps=2, checkpoint_every=1e-9) as run:
        for _ in run.steps():
            run.report(checkpoint=fail)
    assert run.step == 2 and "No space left" in caplog.text


def test_a_folder_that_cannot_be_opened_is_not_in_the_next_trys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, "ftp://nowhere/at-all")
    with pytest.raises(ValueError, match="ftp"), training_run(steps=1):
        pass
    monkeypatch.delenv(ENV_CHECKPOINTS)
    with training_run(steps=1) as run:
        assert list(run.steps()) == [0]


def test_where_the_pool_chooses_the_batch_steps_count_in_the_smallest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_BATCH_SIZE, "256/64")
    with training_run(steps=20, batch_size=64) as run:
        assert (run.batch_size, run.worth) == (256, 1.0)
        seen = []
        for step in run.steps():
            seen.append(step)
            run.report(loss=1.0)
            run.gradient_noise(200.0)  # (200 + 64) / (200 + 256) · 4 = 2.316
    assert seen == [0, 1, 3, 5, 7, 10, 12, 14, 17, 19] and run.step == 20
    with training_run() as run:
        run.ready()
        run.gradient_noise(np.float32(200.0))
        for done in (2, 4, 6, 9):
            assert run.next_step == done
            run.report()
            assert run.step == done
    monkeypatch.setenv(ENV_BATCH_SIZE, "many")
    with training_run(batch_size=64) as run:
        assert (run.batch_size, run.worth) == (64, 1.0)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_a_noise_scale_that_is_none_is_refused(scale: float) -> None:
    with training_run() as run, pytest.raises(ValueError, match=f"scale={scale!r} is no gradient noise scale"):
        run.gradient_noise(scale)


def test_a_training_that_ends_itself_has_its_framework_save_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path / "kept"))
    with training_run(steps=9) as run:
        assert not run.checkpoint_due
        for step in run.steps():
            if step == 2:
                run.stop("enough")
            run.report(loss=1.0)
            if run.checkpoint_due:
                run.report(step=run.step, checkpoint=lambda path: path.write_text("saved"))
                assert not run.checkpoint_due
    assert (run.step, run.stopped) == (3, "enough")
    as_another_process()
    with training_run(steps=9) as run:
        assert run.restore(Path.read_text) == "saved"
