"""What a search may try: ranges and choices, as people write them, or as Optuna has them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
)
from optuna.study import Study
from optuna.trial import Trial

from prefect_gpu.training.trial import without_warnings_of_choices

without_warnings_of_choices()

Space = Mapping[str, Any] | Callable[[Trial], Mapping[str, Any]]

_REMEDY = "give (low, high), (low, high, 'log'), a list of choices, or a distribution of Optuna's"


def propose(study: Study, space: Space) -> tuple[Trial, dict[str, Any]]:
    """The next trial of a study, and what it tries: a value for each parameter, from the study's sampler.

    Raises:
        ValueError: A range makes no sense, or a function does not return parameters. The message names it.
    """
    if callable(space):
        trial = study.ask()
        found = space(trial)
        if not isinstance(found, Mapping):
            raise ValueError(
                f"space(trial) returned {found!r}: let it return parameters by name, such as {{'lr': 0.1}}."
            )
        return trial, dict(found)
    trial = study.ask({name: distribution(name, asked) for name, asked in space.items()})
    return trial, {name: _as_asked(space[name], value) for name, value in trial.params.items()}


def unfit_for_a_database(space: Space) -> str | None:
    """The first parameter with a choice that a study's database cannot keep, such as a class; None: there is none."""
    for name, asked in () if callable(space) else space.items():
        kind = distribution(name, asked)
        try:
            json.dumps(kind.choices if isinstance(kind, CategoricalDistribution) else None)
        except TypeError:
            return name
    return None


def changed_in(study: Study, space: Space) -> tuple[str, BaseDistribution] | None:
    """The first parameter that a study has tried otherwise, which Optuna refuses, and how; None: there is none.

    Ranges may become wider or narrower. Choices stay as they are.
    """
    tried = {name: kind for trial in study.get_trials(deepcopy=False) for name, kind in trial.distributions.items()}
    for name, asked in () if callable(space) else space.items():
        if name in tried:
            try:
                check_distribution_compatibility(tried[name], distribution(name, asked))
            except ValueError:
                return name, tried[name]
    return None


def distribution(name: str, asked: Any) -> BaseDistribution:
    """A range or a list of choices, as a distribution.

    Raises:
        ValueError: It is none of these. The message names the parameter, the value and the remedy.

    Example:
        >>> distribution("lr", (1e-4, 1e-1, "log"))
        FloatDistribution(high=0.1, log=True, low=0.0001, step=None)
        >>> distribution("layers", (1, 4))
        IntDistribution(high=4, log=False, low=1, step=1)
        >>> distribution("kind", ["adam", "sgd"])
        CategoricalDistribution(choices=('adam', 'sgd'))
    """
    if choices := _choices(asked):
        return CategoricalDistribution(tuple(map(_listed, choices)))
    if isinstance(asked, BaseDistribution):
        return asked
    if isinstance(asked, tuple) and 2 <= len(asked) <= 3:
        return _range(name, asked)
    raise ValueError(f"space[{name!r}]={asked!r} is not allowed: {_REMEDY}.")


def misfit_of(function: Callable[..., Any], parameters: Mapping[str, Any]) -> str:
    """Why a function cannot be called with parameters of these names; empty: it can.

    Example:
        >>> misfit_of(lambda lr, epochs=3: None, {"lr": 0.1, "epoch": 5})
        "got an unexpected keyword argument 'epoch'"
    """
    try:
        inspect.signature(function).bind(**parameters)
    except TypeError as error:
        return str(error)
    return ""


def _choices(asked: Any) -> Sequence[Any]:
    if isinstance(asked, CategoricalDistribution):
        return asked.choices
    if isinstance(asked, (set, frozenset)):
        return sorted(asked, key=repr)  # in each process the same: a study is gone on with in their order only
    return asked if isinstance(asked, list) else ()


def _listed(choice: Any) -> Any:
    """A tuple as a list, which is what a study's database gives back."""
    return [_listed(one) for one in choice] if isinstance(choice, (tuple, list)) else choice


def _as_asked(asked: Any, value: Any) -> Any:
    """A list may have been a tuple."""
    if not isinstance(value, list):
        return value
    return next(choice for choice in _choices(asked) if _listed(choice) == value)


def _range(name: str, asked: Sequence[Any]) -> BaseDistribution:
    low, high, *log = asked
    whole = all(type(end) is int for end in (low, high))
    if (not whole and not all(type(end) in (int, float) for end in (low, high))) or log not in ([], ["log"]):
        raise ValueError(f"space[{name!r}]={asked!r} is not allowed: {_REMEDY}.")
    try:
        return IntDistribution(low, high, log=bool(log)) if whole else FloatDistribution(low, high, log=bool(log))
    except ValueError as error:
        raise ValueError(f"space[{name!r}]={asked!r} is not allowed: {error}") from None
