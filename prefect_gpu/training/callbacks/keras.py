"""Reporting from Keras 3, with any of its backends: one step is one batch."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from weakref import WeakSet

import keras

from prefect_gpu.training.callbacks._random import random_state, set_random_state
from prefect_gpu.training.callbacks._values import metrics
from prefect_gpu.training.checks import second_training
from prefect_gpu.training.run import TrainingRun

logger = logging.getLogger("prefect_gpu.training")
_restored: WeakSet[Any] = WeakSet()  # models that were told with which epoch to begin


class KerasReporter(keras.callbacks.Callback):
    """Reports every batch to a training run, restores and saves checkpoints, and stops when the run is to stop.

    ``training_run()`` needs no ``steps=``: ``fit()`` knows them. Loss and metrics are reported at the end of each
    epoch. Checkpoints are saved then, too: weights, the optimizer's state and random numbers (Python, numpy and
    PyTorch; not those of TensorFlow or JAX). A restored training begins with the epoch after it.

    Make it on the way to ``fit()``, where it looks for a checkpoint, and before ``run.ready()`` if you call that
    yourself: Keras puts a model on the GPU as soon as it is built.

    Args:
        run: The training run.
        loss: The value that is the loss, such as ``"val_loss"``.
        checkpoints: Whether to save and restore.

    A run that is to stop ends at the end of the epoch, where it can save; without checkpoints it ends at once.

    Example:
        >>> with training_run() as run:                                       # doctest: +SKIP
        ...     model.fit(x, y, epochs=20, callbacks=[KerasReporter(run)])
    """

    def __init__(self, run: TrainingRun, *, loss: str = "loss", checkpoints: bool = True) -> None:
        super().__init__()
        self._run = run
        self._loss = loss
        self._checkpoints = checkpoints
        self._found = run.restore() if checkpoints else None
        self._epoch = 0
        self._epochs_done = 0
        self._begun = self._warned = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Wait for the device, if the pool wants that (:meth:`TrainingRun.ready`), and restore.

        Raises:
            ValueError: There is a checkpoint, and the model has no weights yet that could be restored.
        """
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if steps and epochs:
            self._run.expect(steps * epochs)
        self._run.ready()
        if self._found is not None:
            self._restore(self._found)
            self._found = None
        elif not self._begun and self.model in _restored:
            # An earlier training has gone on in the middle. Keras would leave out as many epochs of this one.
            self.model._initial_epoch = None
            _restored.discard(self.model)
        self._begun = True
        if self._checkpoints:
            _ = self._run.checkpoint_due  # an offer is coming: a stop in the first epoch waits for it

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the epoch.

        Raises:
            TrainingRunError: A second training begins, whose checkpoints would be taken for those of the first one.
        """
        if self._checkpoints and epoch < self._epochs_done:
            raise second_training("fit()", "KerasReporter", "checkpoints=False")
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Report the step. Its loss is on the device still, and stays there until the epoch ends."""
        steps = self.params.get("steps")
        self._run.report(step=self._epoch * steps + batch + 1 if steps else None)
        if self._run.stop_requested:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Report loss and metrics, validation included, and offer a checkpoint."""
        values = dict(logs or {})
        if self._loss not in values and not self._may_come(values):
            raise ValueError(f"KerasReporter(loss={self._loss!r}): there is only {', '.join(values) or 'nothing'}.")
        loss = values.pop(self._loss, None)
        loss = None if loss is None else float(loss)
        checkpoint = (lambda path: self._save(path, epoch + 1)) if self._checkpoints else None
        self._run.report(loss, step=self._run.step, checkpoint=checkpoint, **metrics(values))
        if self._run.stop_requested:
            self.model.stop_training = True
        self._epochs_done = epoch + 1

    def _may_come(self, values: dict[str, Any]) -> bool:
        """Whether the loss is one of validation, and this epoch had none: it may come later (``validation_freq``)."""
        may_come = self._loss.startswith("val_") and not any(name.startswith("val_") for name in values)
        if may_come and not self._warned:
            self._warned = True
            logger.warning(
                "KerasReporter(loss=%r): this epoch had no validation, so that it has no loss. Pass validation data to "
                "fit(), unless validation_freq says that they are looked at later.",
                self._loss,
            )
        return may_come

    def _save(self, path: Path, epochs: int) -> None:
        path.mkdir()
        self.model.save_weights(path / "model.weights.h5")
        (path / "training.json").write_text(json.dumps({"epochs": epochs, "random": random_state()}))

    def _restore(self, path: Path) -> None:
        if not self.model.built:
            raise ValueError("The model has no weights yet to be restored: give it an Input layer, or call build().")
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(path / "model.weights.h5")
        training = json.loads((path / "training.json").read_text())
        set_random_state(training["random"])
        self.model._initial_epoch = training["epochs"]  # as Keras's own BackupAndRestore does it
        _restored.add(self.model)
