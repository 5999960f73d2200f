"""``sweep``: Optuna proposes, the pool trains, and each training is looked at while it trains."""

from __future__ import annotations

import logging
import pickle
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState
from prefect.futures import PrefectFlowRunFuture

from prefect_gpu.decorators import GpuFlow
from prefect_gpu.sweeps.artifacts import show
from prefect_gpu.sweeps.space import Space, propose
from prefect_gpu.training.protocol import ENV_TRIAL
from prefect_gpu.training.trial import PRUNED_AT, TrialOf

logger = logging.getLogger("prefect_gpu.sweeps")

_RUN = "flow_run"  # user attribute of a trial: its flow run
_ERROR = "error"
_OVER = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class SweepError(RuntimeError):
    """No trial of a sweep has given a result. The message has the error of the last one."""


def sweep(
    train: GpuFlow[..., Any],
    space: Space,
    *,
    trials: int,
    parallel: int = 4,
    direction: Literal["minimize", "maximize"] = "minimize",
    objective: str = "loss",
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    fixed: Mapping[str, Any] | None = None,
    storage: str | None = None,
    name: str | None = None,
) -> optuna.Study:
    """Search for the best parameters of a flow. Its runs train in the flow's work pool, several at a time.

    The training function stays as it is. With a pruner, each training is compared with the others while it trains, at
    up to twenty of its steps, and one that is pruned ends its loop (``run.steps()``) there, with its best checkpoint
    kept. In a flow run, the table of trials and a picture of them are artifacts of it.

    A sweep that was interrupted goes on when it is called again with the same storage and name: trials that were over
    count, and those that train are waited for.

    Args:
        train: A flow with ``@gpu``, whose trainings use ``training_run`` if they are to be pruned. It returns a number,
            or a mapping that has one for ``objective``.
        space: By parameter of the flow: ``(low, high)``, ``(low, high, "log")``, a list of choices, or a distribution
            of Optuna's. Or a function that takes Optuna's trial and returns the parameters.
        trials: How many trials there are to be, those that an earlier call has done included.
        parallel: How many are in the pool at a time. More than there are devices: the next ones are prepared ahead.
        direction: Whether the best value is the smallest or the largest.
        objective: What the pruner compares: ``"loss"``, or a metric that the training reports. Also the key of the
            value, if the flow returns a mapping.
        sampler: Any of Optuna's; by default TPE.
        pruner: Any of Optuna's, for example ``optuna.pruners.SuccessiveHalvingPruner()`` (ASHA); by default none.
        fixed: Parameters that are the same for all trials.
        storage: Where the study is kept, as Optuna's URL: SQLite or PostgreSQL. By default it ends with this process
            or, with a pruner, is a SQLite file in this folder. Runs must reach it to be pruned.
        name: Of the study; by default the flow's.

    Returns:
        Optuna's study: ``study.best_params``, ``study.best_value``, ``study.trials``.

    Raises:
        ValueError: An argument makes no sense. The message names it.
        SweepError: All trials failed.

    Example:
        >>> study = sweep(train, {"lr": (1e-4, 1e-1, "log")}, trials=40)       # doctest: +SKIP
        >>> study.best_params                                                  # doctest: +SKIP
        {'lr': 0.0031}
    """
    if not isinstance(train, GpuFlow):
        raise ValueError(f"train={train!r} is not allowed: give a flow with @gpu above @flow.")
    for field, value in (("trials", trials), ("parallel", parallel)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{field}={value!r} is not allowed: give a whole number of at least 1.")
    name = name or train.name
    if storage is None and pruner is not None:
        storage = f"sqlite:///{Path.cwd() / _file_name(name)}.db"
    study = optuna.create_study(
        storage=storage, study_name=name, direction=direction, sampler=sampler, pruner=pruner, load_if_exists=True
    )
    searching = _Search(train, study, space, dict(fixed or {}), objective, storage if pruner is not None else None)
    try:
        searching.run(trials, parallel)
    finally:
        show(study, objective)
    found = study.get_trials(states=(TrialState.COMPLETE,))
    if not found and not study.get_trials(states=(TrialState.PRUNED,)):
        last = study.trials[-1].user_attrs.get(_ERROR, "no error was recorded")
        raise SweepError(f"All {len(study.trials)} trials failed: look at one of their runs. The last: {last}")
    return study


class _Search:
    """One call of :func:`sweep`."""

    def __init__(
        self,
        train: GpuFlow[..., Any],
        study: optuna.Study,
        space: Space,
        fixed: dict[str, Any],
        objective: str,
        pruned_from: str | None,
    ) -> None:
        self._train, self._study, self._space, self._fixed = train, study, space, fixed
        self._objective, self._pruned_from = objective, pruned_from

    def run(self, trials: int, parallel: int) -> None:
        """Until so many trials are over."""
        with ThreadPoolExecutor(parallel, thread_name_prefix="sweep") as threads:
            waiting: dict[Future[Any], int] = {}
            for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
                waiting[_in(threads, self._resume(trial))] = trial.number
            while True:
                over = len(self._study.get_trials(deepcopy=False, states=_OVER))
                while len(waiting) < parallel and over + len(waiting) < trials:
                    number, result = self._start()
                    waiting[_in(threads, result)] = number
                if not waiting:
                    return
                for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                    self._tell(waiting.pop(done), done)

    def _start(self) -> tuple[int, Callable[[], Any]]:
        """The next trial: its number, and what waits for what its run returns."""
        trial, parameters = propose(self._study, self._space)
        train = self._train
        if self._pruned_from is not None:
            pruner = b64encode(pickle.dumps(self._study.pruner)).decode()
            about = TrialOf(self._pruned_from, self._study.study_name, trial._trial_id, self._objective, pruner)
            env = {**(train.job_variables.get("env") or {}), ENV_TRIAL: about.as_text()}
            train = train.with_options(job_variables={**train.job_variables, "env": env})
        future = train.submit(**{**self._fixed, **parameters})
        trial.set_user_attr(_RUN, str(future.flow_run_id))
        return trial.number, future.result

    def _resume(self, trial: FrozenTrial) -> Callable[[], Any]:
        """What waits for the run of a trial that an earlier sweep has left."""
        run = trial.user_attrs.get(_RUN)

        def gone() -> None:
            raise SweepError("the sweep ended before it had started this trial's run")

        return PrefectFlowRunFuture[Any](flow_run_id=UUID(run)).result if run else gone

    def _tell(self, number: int, done: Future[Any]) -> None:
        """How a trial went. One that failed does not stop the sweep."""
        trial = self._study.trials[number]
        try:
            value = done.result()
            if PRUNED_AT in trial.user_attrs:
                self._study.tell(number, state=TrialState.PRUNED)
            else:
                self._study.tell(number, _number(value, self._objective))
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            logger.warning("Trial %d failed: %s", number, words)
            optuna.trial.Trial(self._study, trial._trial_id).set_user_attr(_ERROR, words)
            self._study.tell(number, state=TrialState.FAIL)


def _in(threads: ThreadPoolExecutor, result: Callable[[], Any]) -> Future[Any]:
    """Wait for a result in a thread, which has the caller's settings of Prefect and its flow run."""
    return threads.submit(copy_context().run, result)


def _number(value: Any, objective: str) -> float:
    """What a flow returned, as a number.

    Raises:
        TypeError: It is none, and no mapping that has one.
    """
    found = value.get(objective) if isinstance(value, Mapping) else value
    try:
        return float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(
            f"the flow returned {value!r}: let it return a number, or a mapping with one for {objective!r}"
        ) from None


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
