"""The callback against the real Keras 3, on its PyTorch backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefect_gpu.training import training_run
from prefect_gpu.training.checks import TrainingRunError
from prefect_gpu.training.protocol import CHECKPOINT, ENV_CHECKPOINTS, PROGRESS, SAVE_CHECKPOINT, STOP
from tests.training.callbacks.restarted import OFFLINE, ends_alike
from tests.training.conftest import as_another_process

pytestmark = pytest.mark.needs("frameworks")  # it takes seconds to import

PROGRAM = """
import keras, numpy

def model():
    keras.utils.set_random_seed(4)
    layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
    made = keras.Sequential(layers)
    made.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    return made

def fit(model, *callbacks, epochs=3, **options):
    x, y = numpy.random.default_rng(0).normal(size=(40, 4)), numpy.zeros((40, 1))
    return model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=list(callbacks), **options)
"""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    exec(PROGRAM, names)
    return names


def reporter(run: Any, **options: Any) -> Any:
    from prefect_gpu.training.callbacks.keras import KerasReporter

    return KerasReporter(run, **options)


def test_batches_are_steps_and_epochs_have_losses(library: dict[str, Any], pool: Any) -> None:
    with training_run() as run:
        history = library["fit"](library["model"](), reporter(run), validation_split=0.2).history
    with run.saving():
        pass
    assert pool.losses == [[4 * (epoch + 1), loss] for epoch, loss in enumerate(history["loss"])]
    last = pool.data(PROGRESS)[-1]
    assert (last["step"], last["steps"]) == (12, 12)
    assert last["metrics"] == {name: history[name][-1] for name in ("mae", "val_loss", "val_mae")}
    assert pool.phases == ["preparing", "training", "saving", "finished"]


def test_the_loss_may_be_another_value(library: dict[str, Any]) -> None:
    losses = []
    with training_run() as run:
        chosen = reporter(run, loss="mae")
        report = run.report
        run.report = lambda loss=None, **more: (losses.append((loss, more)), report(loss, **more))  # type: ignore[assignment]
        history = library["fit"](library["model"](), chosen, epochs=1).history
        run.report = report  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=r"'accuracy'.*there is only .*mae"):
            library["fit"](library["model"](), reporter(run, loss="accuracy", checkpoints=False), epochs=1)
    # The training loss is still there, under a name that report() does not use itself.
    assert losses[-1][0] == history["mae"][0] and losses[-1][1]["loss_"] == history["loss"][0]


def test_a_loss_of_validation_may_come_later(library: dict[str, Any], pool: Any) -> None:
    with training_run() as run:
        chosen = reporter(run, loss="val_loss")
        options = {"epochs": 2, "validation_split": 0.2, "validation_freq": 2}
        history = library["fit"](library["model"](), chosen, **options).history
    with run.saving():
        pass
    assert pool.losses == [[8, history["val_loss"][0]]]


@pytest.mark.parametrize(
    ("kind", "checkpoints", "saved", "steps"),
    [(STOP, True, [5], 5), (STOP, False, [], 1), (SAVE_CHECKPOINT, True, [5], 15)],
)
def test_it_saves_and_stops_when_the_pool_asks(
    library: dict[str, Any], pool: Any, kind: str, checkpoints: bool, saved: list[int], steps: int
) -> None:
    with training_run() as run:
        pool.wait_for(lambda: pool.phases)
        pool.instruct(kind, reason="asked")
        while not run._mailbox.pending:
            pass
        library["fit"](library["model"](), reporter(run, checkpoints=checkpoints))
    with run.saving():
        pass
    assert (run.step, [event["step"] for event in pool.data(CHECKPOINT)]) == (steps, saved)


def test_outside_the_pool_the_result_is_the_same(library: dict[str, Any]) -> None:
    ours, plain = library["model"](), None
    with training_run() as run:
        library["fit"](ours, reporter(run))
    plain = library["model"]()
    library["fit"](plain)
    assert all(np.array_equal(a, b) for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True))
    assert run.step == 15


def test_the_length_of_an_epoch_may_be_unknown(library: dict[str, Any]) -> None:
    def batches() -> Any:
        for _ in range(6):
            yield np.ones((8, 4)), np.zeros((8, 1))

    with training_run() as run:
        library["model"]().fit(batches(), epochs=1, verbose=0, callbacks=[reporter(run)])
    assert run.step == 6


def test_an_unbuilt_model_cannot_be_restored(
    library: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    with training_run(checkpoint_every=1e-9) as run:
        library["fit"](library["model"](), reporter(run), epochs=1)
    as_another_process()
    with training_run() as run:
        found = reporter(run)
        found.set_model(library["keras"].Sequential([library["keras"].layers.Dense(1)]))
        found.set_params({"epochs": 1, "steps": 1})
        with pytest.raises(ValueError, match="no weights yet"):
            found.on_train_begin()


def test_a_second_training_of_a_model_has_all_its_epochs_though_the_first_one_was_restored(
    library: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a head that is trained first, and then the whole."""
    monkeypatch.setenv(ENV_CHECKPOINTS, str(tmp_path))
    with training_run(checkpoint_every=1e-9) as run:
        library["fit"](library["model"](), reporter(run), epochs=2)
    as_another_process()
    model = library["model"]()
    with training_run() as run:
        library["fit"](model, reporter(run), epochs=3)
    with training_run() as second:
        library["fit"](model, reporter(second), epochs=3)
    assert run.step == second.step == 15
    assert len(model.history.epoch) == 3


def test_a_second_training_with_one_reporter_is_refused(library: dict[str, Any]) -> None:
    model = library["model"]()
    with training_run() as run:
        told = reporter(run)
        library["fit"](model, told, epochs=1)
        with pytest.raises(TrainingRunError, match=r"needs a training_run\(\) and a KerasReporter"):
            library["fit"](model, told, epochs=1)


def test_a_stopped_training_ends_alike_in_another_process(
    library: dict[str, Any], controller: Any, tmp_path: Path
) -> None:
    checkpoints, said = ends_alike(
        controller,
        tmp_path,
        PROGRAM
        + """
from prefect_gpu.training.callbacks.keras import KerasReporter

class Hold(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if run.step == 6:
            wait(run)

with training_run() as run:
    trained, reporter = model(), KerasReporter(run)
    first = run.step
    fit(trained, Hold(), reporter, epochs=4)
with run.saving():
    pass
print(first, run.step, digest(trained.get_weights()))
""",
        held_at=6,
    )
    assert checkpoints == [10] and said == ["10", "20"]
