"""Reporting from PyTorch Lightning: one step is one step of the optimiser (``trainer.global_step``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the same library under its older name
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment]

from prefect_gpu.training.callbacks._random import random_state, set_random_state
from prefect_gpu.training.callbacks._values import LossReader, metrics
from prefect_gpu.training.checks import second_training
from prefect_gpu.training.run import TrainingRun


class LightningReporter(Callback):
    """Reports every step to a training run, offers checkpoints, and stops the trainer when the run is to stop.

    ``training_run()`` needs no ``steps=``: the trainer knows them. The device is waited for when the data are prepared
    and before the model moves to it (Lightning's ``setup``). For trainings in one process.

    Args:
        run: The training run.
        loss: The logged metric that is the loss, such as ``"val_loss"``. Default: what ``training_step`` returned.
        checkpoints: When a checkpoint may be saved: at the end of an ``"epoch"``, which is carried on exactly, or after
            any ``"step"`` too. Lightning carries on in the middle of an epoch with the right number of batches, yet
            begins the data anew, unless the loader keeps its place (``StatefulDataLoader`` of torchdata). None: never.

    A run that is to stop ends where it can save; without checkpoints it ends at once.

    Example:
        >>> with training_run() as run:                                       # doctest: +SKIP
        ...     trainer = Trainer(max_epochs=20, callbacks=[LightningReporter(run)])
        ...     trainer.fit(model, data, ckpt_path=run.restore())
    """

    def __init__(self, run: TrainingRun, *, loss: str | None = None, checkpoints: str | None = "epoch") -> None:
        super().__init__()
        if checkpoints not in ("epoch", "step", None):
            raise ValueError(f"checkpoints={checkpoints!r} must be 'epoch', 'step' or None.")
        self._run = run
        self._loss = loss
        self._checkpoints = checkpoints
        self._losses = LossReader()
        self._newest: Any = None  # loss, of those that training_step returned
        self._validated = False
        self._over = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Wait for the device, if the pool wants that (:meth:`TrainingRun.ready`)."""
        if stage == "fit":
            self._run.ready()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell how many steps there are.

        Raises:
            TrainingRunError: A second training begins, whose checkpoints would be taken for those of the first one.
        """
        if self._checkpoints is not None and self._over and trainer.global_step < self._run.step:
            raise second_training("fit()", "LightningReporter", "checkpoints=None")
        steps = trainer.estimated_stepping_batches
        # With manual optimisation every optimizer's steps count, and only the module knows how many those will be.
        if pl_module.automatic_optimization and 1 <= steps < float("inf"):
            self._run.expect(int(steps))
        if self._checkpoints is not None:
            _ = self._run.checkpoint_due  # an offer is coming: a stop in the first epoch waits for it

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the step, if the batch ended one."""
        if trainer.global_step == self._run.step:  # gradients are being accumulated
            return
        loss = None
        if self._loss is None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            loss = self._newest = self._losses.read(loss, last=trainer.is_last_batch)
        self._report(trainer, loss, {}, offer=self._checkpoints == "step")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Note that what validation logs is there from now on."""
        self._validated = self._validated or not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report what was logged, and offer a checkpoint: the validation of the epoch has been made by now."""
        logged = metrics(trainer.callback_metrics)
        loss = self._newest  # once more: what is the best checkpoint is told by a loss beside it
        if self._loss is not None:
            found = trainer.callback_metrics.get(self._loss)
            # The first validation may come after a later epoch (`check_val_every_n_epoch`).
            if found is None and (self._validated or not trainer.enable_validation):
                there = ", ".join(trainer.callback_metrics) or "nothing"
                raise ValueError(f"LightningReporter(loss={self._loss!r}): logged is only {there}.")
            loss = None if found is None else float(found)
        self._report(trainer, loss, logged, offer=self._checkpoints is not None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Note that the training is over."""
        self._over = True

    def state_dict(self) -> dict[str, Any]:
        """Random numbers go into Lightning's checkpoints, which have none."""
        return {"random": random_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them out again: a restored training draws what it would have drawn.

        Lightning calls this before it begins to read the data, and keeps to itself what it draws in between.
        """
        set_random_state(state_dict["random"])

    def _report(self, trainer: Any, loss: Any, logged: dict[str, Any], *, offer: bool) -> None:
        def checkpoint(path: Path) -> None:
            trainer.save_checkpoint(f"{path}.ckpt")

        self._run.report(loss, step=trainer.global_step, checkpoint=checkpoint if offer else None, **logged)
        if self._run.stop_requested:
            trainer.should_stop = True
