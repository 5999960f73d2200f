"""What a training reports goes to MLflow, too, where MLflow is installed and has a server. Else nothing happens.

The server is named as always: ``MLFLOW_TRACKING_URI``, or ``mlflow.set_tracking_uri``. MLflow's default, a database in
the folder of the process, is not used: in a pool that folder is no place to find anything again.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prefect_gpu.instance import is_further_instance
from prefect_gpu.retraining.origin import origin
from prefect_gpu.training import TrainingRun, checks

logger = logging.getLogger("prefect_gpu.training")

# Tags. By the first, a training that carries on finds its MLflow run again; the last is MLflow's own.
_REFUSED = re.compile(r"[^\w\-./ :]", re.ASCII)  # characters of a metric's name
FLOW_RUN, FLOW_RUN_URL, CODE = "prefect.flow_run_id", "prefect.flow_run_url", "mlflow.source.git.commit"


class MLflowRun:
    """A run of MLflow's. Whatever goes wrong with MLflow is logged as a warning, and the training goes on.

    Attributes:
        run_id: MLflow's id; empty: nothing is logged.
    """

    def __init__(self, run_id: str = "") -> None:
        self.run_id = run_id

    def log_file(self, path: Path, folder: str = "model") -> None:
        """Keep a file, or a folder of files, as an artifact: the model, say. Also when the training is over.

        Args:
            folder: Where among the run's artifacts.
        """
        if self.run_id:
            from mlflow import MlflowClient

            log = MlflowClient().log_artifacts if path.is_dir() else MlflowClient().log_artifact
            _try("keep a file", log, self.run_id, str(path), folder)

    def log_metrics(self, **metrics: float) -> None:
        """Numbers that belong to no step, such as the accuracy on held-out data."""
        if self.run_id:
            from mlflow import MlflowClient

            for name, number in _numbers(metrics).items():
                _try("log a metric", MlflowClient().log_metric, self.run_id, name, number)


@contextmanager
def mlflow_run(
    run: TrainingRun, parameters: Mapping[str, Any], *, code: str | Path, tags: Mapping[str, str] | None = None
) -> Iterator[MLflowRun]:
    """Log a training to MLflow: parameters, the loss and the metrics of each report, and where it ran.

    Metrics are sent in a thread of MLflow's. A training that was stopped and carries on goes on with the same MLflow
    run. Of a gang, the first instance logs. MLflow's own functions and autologging find the run as the active one.

    Args:
        run: The training, inside of its ``with``.
        parameters: What it trains with.
        code: ``__file__``, whose commit is a tag.
        tags: Further tags.

    Example:
        >>> with training_run(steps=10) as run, mlflow_run(run, {"lr": 0.1}, code=__file__) as log:  # doctest: +SKIP
        ...     for _ in run.steps():
        ...         run.report(loss=fit_one(model))
        >>> log.log_file(Path("model.joblib"))                                                       # doctest: +SKIP
    """
    if find_spec("mlflow") is None or is_further_instance() or not _has_server():
        yield MLflowRun()
        return
    mlflow = _try("be imported", import_module, "mlflow")
    if mlflow is None:
        yield MLflowRun()
        return

    made = origin(code)
    about = {FLOW_RUN: made["run"], FLOW_RUN_URL: made["run_url"], CODE: made["code_version"], **(tags or {})}
    active = _try("begin a run", _begin, {name: value for name, value in about.items() if value})
    if active is None:
        yield MLflowRun()
        return
    run_id = str(active.info.run_id)
    _try("log parameters", mlflow.log_params, dict(parameters))

    def report(step: int, loss: float | None, metrics: dict[str, Any]) -> None:
        numbers = _numbers(metrics) | ({} if loss is None else {"loss": loss})
        if numbers:
            mlflow.log_metrics(numbers, step=step, run_id=run_id, synchronous=False)

    run.on_report(report)
    status = "FAILED"
    try:
        yield MLflowRun(run_id)
        status = "KILLED" if run.stopped else "FINISHED"
    finally:
        _try("send what is left", mlflow.flush_async_logging)
        _try("end the run", mlflow.end_run, status)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What MLflow takes: it refuses all of a step for the sake of one name with other characters in it, ``acc@5``."""
    known = {name: value for name, value in metrics.items() if value is not None}
    return {_REFUSED.sub("_", name): checks.number(value, name) for name, value in known.items()}


def _has_server() -> bool:
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return True
    loaded = sys.modules.get("mlflow")  # it takes seconds to import, and who has not has set nothing
    named = loaded is not None and bool(loaded.is_tracking_uri_set())
    if not named:
        logger.info("MLflow is installed, and nothing goes there: MLFLOW_TRACKING_URI is not set.")
    return named


def _begin(tags: dict[str, str]) -> Any:
    """The MLflow run of this flow run: the one that an earlier try of it has begun, or a new one."""
    import mlflow

    nested = mlflow.active_run() is not None  # one of the user's own
    if flow_run_id := tags.get(FLOW_RUN):
        same = f"tags.`{FLOW_RUN}` = '{flow_run_id}'"
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        found = mlflow.search_runs(
            filter_string=same, max_results=1, output_format="list",
            experiment_names=[experiment] if experiment else None,
        )  # fmt: skip
        if found:
            return mlflow.start_run(run_id=found[0].info.run_id, nested=nested)
    return mlflow.start_run(tags=tags, nested=nested)


def _try(what: str, call: Any, *arguments: Any) -> Any:
    """Call something of MLflow's; None if that fails: a server that is away costs no training."""
    try:
        return call(*arguments)
    except Exception as error:  # MLflow's, of its HTTP client, of its database
        logger.warning("MLflow could not %s; the training goes on without: %s", what, error)
        return None
