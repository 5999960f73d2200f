"""Reporting from XGBoost: one step is one boosting round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xgboost
from xgboost.callback import TrainingCallback

from prefect_gpu.training.run import TrainingRun


class XGBoostReporter(TrainingCallback):
    """Reports every boosting round to a training run, offers checkpoints, and stops when the run is to stop.

    Args:
        run: The training run.
        data: The evaluation set whose metric is the loss, by its name in ``evals``. Default: the first one.
        metric: The metric that is the loss. Default: the first one of that set.
        checkpoints: Whether the booster is saved when a checkpoint is due.

    The other metrics are reported as ``<data>_<metric>``. Without an evaluation set only the rounds are counted.
    ``xgboost.cv`` reports the mean over the folds, and saves no checkpoints.

    Example:
        >>> with training_run(steps=200) as run:                              # doctest: +SKIP
        ...     booster = run.restore(load_booster)
        ...     booster = xgboost.train(params, train, num_boost_round=run.steps_left, xgb_model=booster,
        ...                             evals=[(valid, "valid")], callbacks=[XGBoostReporter(run)])
    """

    def __init__(
        self,
        run: TrainingRun,
        *,
        data: str | None = None,
        metric: str | None = None,
        checkpoints: bool = True,
    ) -> None:
        super().__init__()
        self._run = run
        self._data = data
        self._metric = metric
        self._checkpoints = checkpoints
        self._threads: int | None = None  # that the booster is to use from now on
        run.on_cores(self._use_threads)

    def _use_threads(self, count: int) -> None:
        self._threads = count

    def before_training(self, model: Any) -> Any:
        """Wait for the device, if the pool wants that (:meth:`TrainingRun.ready`)."""
        self._run.ready()
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: dict[str, dict[str, Any]]) -> bool:
        """Report the round; True ends the training, which XGBoost then returns as far as it came."""
        loss, metrics = self._values(evals_log)
        # Counted by the run rather than taken from `epoch`, which begins at 0 again in a continued training.
        checkpoint = None
        if self._checkpoints and isinstance(model, xgboost.Booster):

            def checkpoint(path: Path) -> None:
                # XGBoost chooses the format by the suffix; the store follows the longer name.
                model.save_model(f"{path}.ubj")

        self._run.report(loss, checkpoint=checkpoint, **metrics)
        if self._threads is not None and isinstance(model, xgboost.Booster):
            model.set_param({"nthread": self._threads})
            self._threads = None
        return self._run.stop_requested

    def _values(self, evals_log: dict[str, dict[str, Any]]) -> tuple[float | None, dict[str, Any]]:
        loss = None
        metrics: dict[str, Any] = {}
        if not evals_log and (self._data or self._metric):
            raise ValueError(
                f"XGBoostReporter(data={self._data!r}, metric={self._metric!r}): nothing is evaluated. Pass "
                "evals=[(matrix, name)] to xgboost.train(), or eval_set= to fit()."
            )
        wanted = _pick(evals_log, self._data, "data")
        for data, results in evals_log.items():
            chosen = _pick(results, self._metric, "metric") if data == wanted else None
            for metric, history in results.items():
                value = history[-1]
                value = value[0] if isinstance(value, tuple) else value  # cv: mean and standard deviation
                if chosen is not None and metric == chosen:
                    loss = float(value)
                else:
                    metrics[f"{data}_{metric}"] = float(value)
        return loss, metrics


def load_booster(path: Path) -> xgboost.Booster:
    """The booster in a checkpoint, for ``run.restore(load_booster)``."""
    return xgboost.Booster(model_file=str(path))


def _pick(named: dict[str, Any], name: str | None, argument: str) -> str | None:
    if name is None:
        return next(iter(named), None)
    if name not in named and named:
        raise ValueError(f"XGBoostReporter({argument}={name!r}): there is only {', '.join(named)}.")
    return name
