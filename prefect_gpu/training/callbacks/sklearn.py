"""Reporting from scikit-learn, which has no callbacks: the loops that its users write, written once.

Both functions carry on from a checkpoint, report every step and stop when the run is to stop. Checkpoints are pickled
with joblib, as scikit-learn recommends: they are read from this run's own folder only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from prefect_gpu.training.run import TrainingRun

Model = TypeVar("Model")
Loss = Callable[[Any], float]


def fit_incrementally(
    run: TrainingRun,
    model: Model,
    batches: Callable[[], Iterable[tuple[Any, Any]]] | Iterable[tuple[Any, Any]],
    *,
    loss: Loss | None = None,
    **fit_params: Any,
) -> Model:
    """Train with ``partial_fit``; one step is one pass over the batches.

    Args:
        run: A training run with ``steps`` set to the number of passes.
        model: An estimator with ``partial_fit``.
        batches: Called for each pass, returns the batches ``(X, y)``; a list of batches does too.
        loss: Computes the loss of the model after each pass, for example on a validation set.
        **fit_params: Passed to ``partial_fit``, for example ``classes=[0, 1]``.

    Returns:
        The trained model: the one that was passed, or, where a checkpoint existed, the restored one.

    Raises:
        TypeError: The model has no ``partial_fit``, or the batches can be read only once.
        ValueError: The run has no ``steps``.

    Example:
        >>> with training_run(steps=20, batch_size=256) as run:               # doctest: +SKIP
        ...     model = fit_incrementally(run, SGDClassifier(loss="log_loss"), batches, classes=[0, 1],
        ...                               loss=lambda m: log_loss(y_valid, m.predict_proba(X_valid)))
    """
    if not hasattr(model, "partial_fit"):
        raise TypeError(f"model={model!r} has no partial_fit: use fit_warm_start(), or an estimator that has one.")
    if not callable(batches) and iter(batches) is batches:
        raise TypeError(
            "batches= can be read only once: pass a function that returns the batches of a pass, or a list."
        )
    _require_steps(run)
    model = _restored(run, model)
    for _ in run.steps():
        for features, target in batches() if callable(batches) else batches:
            model.partial_fit(features, target, **fit_params)  # type: ignore[attr-defined]
        _report(run, model, loss)
    return model


def fit_warm_start(
    run: TrainingRun,
    model: Model,
    X: Any,
    y: Any,
    *,
    per_step: int = 1,
    loss: Loss | None = None,
    **fit_params: Any,
) -> Model:
    """Train an estimator that knows ``warm_start``; one step adds ``per_step`` trees or iterations.

    Args:
        run: A training run; its ``steps`` times ``per_step`` is the size that the model ends with (the model's own
            ``n_estimators`` or ``max_iter`` is overwritten).
        model: An estimator with ``warm_start`` and either ``n_estimators`` (forests, boosting) or ``max_iter``
            (histogram boosting, linear models, neural networks).
        X: Features.
        y: Target.
        per_step: Trees or iterations in one step.
        loss: Computes the loss of the model after each step.
        **fit_params: Passed to ``fit``, for example ``sample_weight=weights``.

    Returns:
        The trained model: the one that was passed, or, where a checkpoint existed, the restored one.

    Raises:
        TypeError: The model knows no ``warm_start``, or has neither of the two parameters.
        ValueError: ``per_step`` is less than 1, or the run has no ``steps``.

    Example:
        >>> with training_run(steps=50) as run:                               # doctest: +SKIP
        ...     model = fit_warm_start(run, RandomForestClassifier(), X, y, per_step=10)
    """
    parameters = model.get_params() if hasattr(model, "get_params") else {}
    size = next((name for name in ("n_estimators", "max_iter") if name in parameters), None)
    if "warm_start" not in parameters or size is None:
        raise TypeError(
            f"model={model!r} cannot be trained in steps: it needs warm_start and either n_estimators or max_iter."
        )
    if per_step < 1:
        raise ValueError(f"per_step={per_step!r} must be at least 1: how many trees or iterations one step adds.")
    _require_steps(run)
    model = _restored(run, model)
    # Trees, and the iterations of histogram boosting, count from the beginning; other iterations from the last fit.
    total = size == "n_estimators" or any("HistGradientBoosting" in kind.__name__ for kind in type(model).__mro__)
    for step in run.steps():
        model.set_params(warm_start=True, **{size: (step + 1) * per_step if total else per_step})  # type: ignore[attr-defined]
        with warnings.catch_warnings():
            # "Not converged yet" is what a single step is meant to be.
            _ignore_convergence_warnings()
            model.fit(X, y, **fit_params)  # type: ignore[attr-defined]
        _report(run, model, loss)
    return model


def save_model(model: Any, path: Path) -> None:
    """Write an estimator with joblib: ``run.report(checkpoint=lambda path: save_model(model, path))``."""
    import joblib

    joblib.dump(model, path)


def load_model(path: Path) -> Any:
    """Read it back: ``model = run.restore(load_model)``. Unpickles: only for files of your own."""
    import joblib

    return joblib.load(path)


def _restored(run: TrainingRun, model: Model) -> Model:
    restored = run.restore(load_model)
    return model if restored is None else restored


def _report(run: TrainingRun, model: Any, loss: Loss | None) -> None:
    run.report(loss(model) if loss is not None else None, checkpoint=lambda path: save_model(model, path))


def _require_steps(run: TrainingRun) -> None:
    if run.total_steps is None:
        raise ValueError("steps=None: pass training_run(steps=...), or the training would never end.")


def _ignore_convergence_warnings() -> None:
    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)
