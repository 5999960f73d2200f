"""Optuna's pruners end a training early, with its best checkpoint kept."""

from __future__ import annotations

from typing import Any

import optuna

from prefect_gpu.training import checks
from prefect_gpu.training.checkpoints import SaveCallback
from prefect_gpu.training.run import TrainingRun

PRUNED = "pruned by Optuna"


class OptunaReporter:
    """Reports each step to a training run and to a trial, and ends the run's loop when the trial is to be pruned.

    Trials of one process need names for what they keep: ``training_run(keep_best=f"trial-{trial.number}")``.

    Args:
        run: The training run.
        trial: The trial, of a study in this process or, through a storage, of one that others work on as well.

    Attributes:
        pruned: Whether the pruner has ended the training.

    Example:
        >>> def objective(trial):                                              # doctest: +SKIP
        ...     with training_run(steps=50, keep_best=f"trial-{trial.number}") as run:
        ...         reporter = OptunaReporter(run, trial)
        ...         for epoch in run.steps():
        ...             reporter.report(fit_one(model), checkpoint=save)
        ...     reporter.raise_if_pruned()
        ...     return evaluate(run.best(load) or model)
    """

    def __init__(self, run: TrainingRun, trial: optuna.trial.Trial) -> None:
        self._run = run
        self._trial = trial
        self.pruned = False

    def report(
        self,
        loss: Any,
        *,
        value: Any = None,
        step: int | None = None,
        checkpoint: SaveCallback | None = None,
        **metrics: Any,
    ) -> None:
        """Report a finished step; the arguments of :meth:`.TrainingRun.report`.

        Args:
            value: What the study optimises, if that is not the loss, such as an accuracy. It is told the trial alone,
                after the number of the step.

        Raises:
            TypeError: The loss or the value is no number.
        """
        reached = checks.number(loss if value is None else value, "loss" if value is None else "value")
        done = self._run.next_step if step is None else step
        self._trial.report(reached, done)
        # Asked before the run is told: its report is the last then, and saves if this step was its best.
        if self._trial.should_prune():
            self.pruned = True
            self._run.stop(PRUNED)
        self._run.report(loss, step=step, checkpoint=checkpoint, **metrics)

    def raise_if_pruned(self) -> None:
        """After the loop: tell Optuna. Who would rather return what was reached looks at :attr:`pruned`.

        Raises:
            optuna.TrialPruned: The pruner has ended the training.
        """
        if self.pruned:
            raise optuna.TrialPruned(f"pruned after {self._run.step} steps")
