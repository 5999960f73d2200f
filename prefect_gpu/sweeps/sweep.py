"""``sweep``: Optuna proposes, the pool trains, and each training is looked at while it trains."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from prefect_gpu.decorators import GpuFlow
from prefect_gpu.storage.engine import masked
from prefect_gpu.sweeps.alone import Alone, SweepError
from prefect_gpu.sweeps.artifacts import show
from prefect_gpu.sweeps.outcomes import ERROR
from prefect_gpu.sweeps.proposals import Proposer
from prefect_gpu.sweeps.runs import NotSentError
from prefect_gpu.sweeps.search import Search
from prefect_gpu.sweeps.space import Space, changed_in, misfit_of, unfit_for_a_database
from prefect_gpu.training.rungs import Rungs
from prefect_gpu.training.trial import said_by

_A_URL = "give the URL of a database, such as 'sqlite:////srv/search.db' or 'postgresql://user@host/studies'"


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
    rungs: Rungs | None = None,
    learned_cost: bool = True,
    timeout: float | None = None,
    fixed: Mapping[str, Any] | None = None,
    storage: str | None = None,
    name: str | None = None,
) -> optuna.Study:
    """Search for the best parameters of a flow. Its runs train in the flow's work pool, several at a time.

    The training function stays as it is. With a pruner, each training is compared with the others while it trains, at
    up to twenty of its steps, and one that is pruned ends its loop (``run.steps()``) there, with its best checkpoint
    kept. With rungs, a training that stops at a rung is suspended in Prefect, with its checkpoint, and carries on from
    there when it is promoted. In a flow run, the table of trials and a picture of them are artifacts of it.

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
        rungs: Where trainings stop, to be promoted if they are among the best there: ``asha(...)``. A device that is
            free goes to a promotion, else to a new trial. Trainings must offer checkpoints and begin with
            ``run.restore()``; others are pruned at the rungs. Instead of a pruner.
        learned_cost: Whether, of several proposals of TPE, the one is taken that promises most for each second that it
            takes (:mod:`prefect_gpu.sweeps.cost`). Other samplers' proposals are taken as they are.
        timeout: After so many seconds no training is started or promoted any more. Those that train end as they do.
        fixed: Parameters that are the same for all trials. Where ``space`` is a function, what it returns comes first.
        storage: Where the study is kept, as Optuna's URL: SQLite or PostgreSQL. By default it ends with this process
            or, with a pruner or rungs, is a SQLite file in this folder. Runs must reach it to be pruned.
        name: Of the study; by default the flow's.

    Returns:
        Optuna's study: ``study.best_params``, ``study.best_value``, ``study.trials``.

    Raises:
        ValueError: An argument makes no sense, or the storage cannot be used. The message names it. If ``space`` is a
            function, what it returns is looked at as trials begin: the first one ends the sweep, a later one counts as
            failed.
        ConnectionError: No Prefect server answers as the sweep begins. Later on, it is waited for.
        SweepError: All trials failed, or none has begun in time. Or the study's database was out of reach for ten
            minutes: the trainings go on, and so does the sweep when it is called again. Or another sweep goes on with
            the study. Or the flow could not be put where the pool keeps flows.

    Example:
        >>> study = sweep(train, {"lr": (1e-4, 1e-1, "log")}, trials=40)       # doctest: +SKIP
        >>> study.best_params                                                  # doctest: +SKIP
        {'lr': 0.0031}
    """
    if not isinstance(train, GpuFlow):
        raise ValueError(f"train={train!r} is not allowed: give a flow with @gpu above @flow.")
    kinds: tuple[tuple[str, Any, type, str], ...] = (
        ("sampler", sampler, BaseSampler, "give one of Optuna's, such as optuna.samplers.TPESampler()"),
        ("pruner", pruner, BasePruner, "give one of Optuna's, such as optuna.pruners.MedianPruner()"),
        ("rungs", rungs, Rungs, "give asha()"),
        ("fixed", fixed, Mapping, "give parameters by name, such as {'epochs': 10}"),
        ("storage", storage, str, _A_URL),
        ("name", name, str, "give a text"),
    )
    for field, value, kind, remedy in kinds:
        if value is not None and not isinstance(value, kind):
            raise ValueError(f"{field}={value!r} is not allowed: {remedy}.")
    if not callable(space) and not isinstance(space, Mapping):
        raise ValueError(
            f"space={space!r} is not allowed: give ranges and choices by parameter, such as {{'lr': (0.001, 0.1)}}, "
            "or a function of Optuna's trial."
        )
    for field, value in (("trials", trials), ("parallel", parallel)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{field}={value!r} is not allowed: give a whole number of at least 1.")
    if timeout is not None and not (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0
    ):
        raise ValueError(f"timeout={timeout!r} is not allowed: give seconds above 0, or leave it out.")
    if direction not in ("minimize", "maximize") or not isinstance(objective, str):
        raise ValueError(
            f"direction={direction!r}, objective={objective!r} is not allowed: a sweep has one objective, to "
            "'minimize' or to 'maximize'. For several, let the flow return one number that weighs them."
        )
    if pruner is not None and rungs is not None:
        raise ValueError("pruner= and rungs= are not allowed together: rungs are where trials are stopped. Give one.")
    if twice := [one for one in fixed or {} if not callable(space) and one in space]:
        raise ValueError(f"fixed has {twice[0]!r}, which is in space, too, and would be searched: leave it out of one.")
    if not callable(space) and (misfit := misfit_of(train.fn, {**(fixed or {}), **space})):
        raise ValueError(f"space and fixed do not fit the parameters of the flow {train.name!r}: {misfit}.")
    name = name or train.name
    watched = pruner is not None or rungs is not None
    if storage is None and watched:
        storage = f"sqlite:///{Path.cwd() / _file_name(name)}.db"
    storage = storage and storage_url(storage)
    if storage and (unfit := unfit_for_a_database(space)):
        raise ValueError(
            f"space[{unfit!r}] has a choice that the study's database cannot keep: give texts, numbers, True, False, "
            "None, or lists of them, and let the flow make of them what it needs."
        )
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction=direction,
            sampler=sampler or TPESampler(),
            pruner=pruner,
            load_if_exists=True,
        )
    except (SQLAlchemyError, ImportError) as error:
        why = str(getattr(error, "orig", None) or error).strip().partition("\n")[0].rstrip(".")
        raise ValueError(
            f"storage={masked(storage or '')!r} cannot be used: {why}. If it is wrong, {_A_URL}."
        ) from error
    if study.direction.name.lower() != direction:
        raise ValueError(
            f"direction={direction!r} is not allowed: the study {name!r} that is gone on with is to "
            f"{study.direction.name.lower()}. Give that, or another name."
        )
    if not callable(space) and (changed := changed_in(study, space)):
        parameter, before = changed
        raise ValueError(
            f"space[{parameter!r}]={space[parameter]!r} is not allowed: the study {name!r} that is gone on with has "
            f"tried {before} so far, and choices and kinds do not change within a study. Give that, or another name."
        )
    search = Search(
        train,
        study,
        Proposer(study, space, learned_cost=learned_cost),
        fixed=dict(fixed or {}),
        objective=objective,
        watched_in=storage if watched else None,
        rungs=rungs,
    )
    try:
        with Alone(study) if storage else nullcontext() as alone:
            search.run(trials, parallel, timeout, check=alone.check if alone is not None else lambda: None)
    except NotSentError as error:
        raise SweepError(
            f"The place where the pool keeps flows has been out of reach for ten minutes: {error} The trainings go on, "
            "and so does the sweep when it is called again with the same storage and name."
        ) from error
    except StorageInternalError as error:
        raise SweepError(
            f"The study {name!r} has been out of reach for ten minutes: {said_by(error)}. Its trainings go on. Call "
            "the sweep again with the same storage and name: it goes on with them."
        ) from error
    finally:
        show(study, objective)
    found = study.get_trials(states=(TrialState.COMPLETE,))
    if not found and not study.get_trials(states=(TrialState.PRUNED,)):
        if not (failed := study.get_trials(states=(TrialState.FAIL,))):
            raise SweepError(f"No trial has begun: the time was over before (timeout={timeout!r}).")
        last = failed[-1].user_attrs.get(ERROR, "no error was recorded")
        all_of_them = f"All {count} trials" if (count := len(failed)) > 1 else "The only trial"
        raise SweepError(f"{all_of_them} failed: look at one of their runs. The last: {last}")
    return study


def storage_url(url: str) -> str:
    """A study's storage as SQLAlchemy has it: PostgreSQL by psycopg, which the extra ``postgres`` brings.

    Example:
        >>> storage_url("postgresql://me@db/studies")
        'postgresql+psycopg://me@db/studies'
    """
    return re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url)


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
