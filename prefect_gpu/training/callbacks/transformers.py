"""Reporting from Hugging Face's ``Trainer``: one step is one step of the optimiser (``state.global_step``)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from prefect_gpu.training.callbacks._values import metrics
from prefect_gpu.training.checks import second_training
from prefect_gpu.training.run import TrainingRun


class TransformersReporter(TrainerCallback):
    """Reports every step to a training run, has the trainer save when a checkpoint is due, and stops it when asked.

    ``training_run()`` needs no ``steps=``: the trainer knows them. Losses and evaluations are reported as often as the
    trainer logs them (``logging_steps``). For trainings in one process.

    ``Trainer(...)`` moves its model to the GPU. So call ``run.ready()`` before it, as in the example, where a run may
    wait for its device; otherwise it is called when training begins.

    Args:
        run: The training run.
        loss: The logged value that is the loss, such as ``"eval_loss"``. Default: the training loss.
        checkpoints: Whether the trainer saves when a checkpoint is due, whatever its ``save_strategy`` is.

    Example:
        >>> with training_run() as run:                                       # doctest: +SKIP
        ...     checkpoint = run.restore(str)
        ...     run.ready()
        ...     trainer = Trainer(model, arguments, train_dataset=data, callbacks=[TransformersReporter(run)])
        ...     trainer.train(resume_from_checkpoint=checkpoint)
    """

    def __init__(self, run: TrainingRun, *, loss: str = "loss", checkpoints: bool = True) -> None:
        self._run = run
        self._loss = loss
        self._checkpoints = checkpoints
        self._only_ours = False  # the trainer saves because we asked, and would not have otherwise
        self._over = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the device, if the pool wants that (:meth:`TrainingRun.ready`), and tell how many steps there are.

        Raises:
            ValueError: The trainer saves models only, which cannot be carried on from.
            TrainingRunError: A second training begins, whose checkpoints would be taken for those of the first one.
        """
        if self._checkpoints and args.save_only_model:
            raise ValueError(
                "save_only_model=True: what the trainer saves cannot be carried on from. Leave it out, or pass "
                "TransformersReporter(checkpoints=False)."
            )
        # One that begins anew since its batches were too large (`auto_find_batch_size`) had not ended.
        if self._checkpoints and self._over and state.global_step < self._run.step:
            raise second_training("train()", "TransformersReporter", "checkpoints=False")
        if state.max_steps >= 1:
            self._run.expect(state.max_steps)
        self._run.ready()
        if self._checkpoints:
            _ = self._run.checkpoint_due  # an offer is coming: a stop in the first step waits for it

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step, and have the trainer save if a checkpoint is due."""
        self._run.report(step=state.global_step)
        if self._checkpoints and self._run.checkpoint_due:
            self._only_ours = not control.should_save
            control.should_save = True
        self._stop(control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Report the loss and the other values that were logged."""
        values = dict(logs or {})
        loss = values.pop(self._loss, None)
        self._run.report(None if loss is None else float(loss), step=state.global_step, **metrics(values))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over what the trainer saved, if a checkpoint is due."""
        saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        # Only now the trainer knows whether the step is the best (`save_strategy="best"`): it may load it in the end.
        only_ours = self._only_ours and getattr(state, "best_global_step", None) != state.global_step
        self._only_ours = False

        def take_over(path: Path) -> None:
            # With a limit, the trainer has removed an older one of its own for this one: then it keeps it.
            if only_ours and args.save_total_limit is None:
                shutil.move(saved, path)
            else:
                shutil.copytree(saved, path)

        self._run.report(step=state.global_step, checkpoint=take_over if self._checkpoints else None)
        self._stop(control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that the training is over."""
        self._over = True

    def _stop(self, control: Any) -> None:
        if self._run.stop_requested:
            control.should_training_stop = True
