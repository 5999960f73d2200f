"""What a search may be asked, in words of Python."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState
from prefect import flow
from prefect.artifacts import Artifact

from prefect_gpu import gpu
from prefect_gpu.sweeps import SweepError, artifacts, space, sweep
from prefect_gpu.sweeps.artifacts import parallel_coordinates, table
from prefect_gpu.sweeps.search import Search
from prefect_gpu.sweeps.space import distribution, propose

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.tuples(inner, inner, st.just("log")),
    max_leaves=4,
)


@given(ANYTHING)
def test_anything_is_a_distribution_or_an_error_that_names_it(asked: Any) -> None:
    try:
        distribution("lr", asked)
    except ValueError as error:
        assert "lr" in str(error)


@pytest.mark.parametrize("asked", [(3, 1), (0.0, 1.0, "log"), (1, 2, 3), "abc", [], (True, False), None])
def test_what_makes_no_sense_is_refused(asked: Any) -> None:
    with pytest.raises(ValueError, match="lr"):
        distribution("lr", asked)


def test_a_function_may_propose() -> None:
    study = optuna.create_study()
    trial, parameters = propose(study, lambda trial: {"x": trial.suggest_int("depth", 1, 3) * 10})
    assert parameters == {"x": 10 * trial.params["depth"]}


def test_choices_that_are_tuples_are_kept_in_a_database_and_given_as_they_were(tmp_path: Path) -> None:
    """JSON has no tuples. What is gone on with, or was enqueued, has come back from the database."""
    storage, layers = f"sqlite:///{tmp_path / 'study.db'}", [(8,), (16, (16, 4))]
    for asked in ({"layers": layers}, {"layers": CategoricalDistribution(tuple(layers))}):
        study = optuna.create_study(storage=storage, study_name="search", load_if_exists=True)
        study.enqueue_trial({"layers": [16, [16, 4]]})
        assert propose(study, asked)[1] == {"layers": (16, (16, 4))}


def test_optuna_does_not_warn_of_choices_that_come_back_as_they_were(tmp_path: Path) -> None:
    """Two warnings a process filled the console, and the log of each trial."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        importlib.reload(space)
        study = optuna.create_study(storage=storage, study_name="search")
        assert propose(study, {"layers": [(8,), (16, 4)]})[1]["layers"] in [(8,), (16, 4)]
        assert len(optuna.load_study(storage=storage, study_name="search").trials) == 1


def test_a_set_of_choices_has_the_same_order_in_every_process() -> None:
    """Python shuffles it anew in each, and a study is gone on with in the same order only."""
    names = [f"optimizer-{number}" for number in range(9)]
    assert list(distribution("kind", set(names)).choices) == names  # type: ignore[attr-defined]


def test_what_a_database_cannot_keep_is_refused_before_anything_starts(tmp_path: Path) -> None:
    train, storage = gpu()(flow(lambda x: x)), f"sqlite:///{tmp_path / 'study.db'}"
    with pytest.raises(ValueError, match=r"space\['x'\] has a choice that the study's database cannot keep"):
        sweep(train, {"x": [Path, str]}, trials=1, storage=storage)


def test_without_optuna_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module("prefect_gpu.sweeps")
    monkeypatch.delitem(sys.modules, "prefect_gpu.sweeps.sweep")
    monkeypatch.setitem(sys.modules, "optuna", None)
    spec = package.__spec__
    assert spec is not None and spec.loader is not None
    with pytest.raises(ModuleNotFoundError, match=r"needs optuna, .*: pip install 'prefect-gpu\[flows\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_parameter_is_fixed_or_searched_and_not_both() -> None:
    train = gpu()(flow(lambda x, lr: x))
    with pytest.raises(ValueError, match="fixed has 'lr', which is in space, too"):
        sweep(train, {"lr": (0.0, 1.0)}, trials=1, fixed={"x": 1, "lr": 0.1})


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), True, "60"])
def test_no_time_at_all_is_refused(timeout: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout=.* is not allowed: give seconds above 0"):
        sweep(gpu()(flow(lambda x: x)), {}, trials=1, timeout=timeout)


def test_a_sweep_whose_time_was_over_at_once_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "run", lambda *_, **__: None)
    with pytest.raises(SweepError, match="No trial has begun: the time was over"):
        sweep(gpu()(flow(lambda x: x)), {"x": (0.0, 1.0)}, trials=1, timeout=1)


def test_a_flow_without_a_pool_and_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="give a flow with @gpu"):
        sweep(print, {}, trials=1)  # type: ignore[arg-type]
    train = gpu()(flow(lambda x: x))
    with pytest.raises(ValueError, match="trials=0 is not allowed"):
        sweep(train, {}, trials=0)
    with pytest.raises(ValueError, match="parallel=True is not allowed"):
        sweep(train, {}, trials=1, parallel=True)
    with pytest.raises(ValueError, match="one objective"):
        sweep(train, {}, trials=1, direction=["minimize", "maximize"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"space": ["x"]}, r"space=\['x'\] is not allowed: give ranges and choices"),
        ({"sampler": "tpe"}, "sampler='tpe' is not allowed"),
        ({"pruner": "median"}, "pruner='median' is not allowed"),  # it pruned nothing, without a word
        ({"pruner": optuna.pruners.MedianPruner}, r"such as optuna.pruners.MedianPruner\(\)"),
        ({"rungs": 3}, r"rungs=3 is not allowed: give asha\(\)"),
        ({"fixed": ["x"]}, r"fixed=\['x'\] is not allowed"),
        ({"name": 3}, "name=3 is not allowed"),
        ({"storage": Path("study.db")}, "storage=.* is not allowed: give the URL of a database"),
        ({"storage": "study.db"}, "storage='study.db' cannot be used: .*'sqlite:////srv/search.db'"),
        ({"storage": "sqlite:////nowhere/x.db"}, "cannot be used: unable to open database file. If it is wrong"),
        ({"storage": "oracle://me:secret@db/x"}, r"storage='oracle://me:\*\*\*@db/x' cannot be used: Failed to import"),
    ],
    ids=itertools.count(),
)
def test_arguments_of_other_kinds_are_refused(argument: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sweep(gpu()(flow(lambda x: x)), **{"space": {"x": (0.0, 1.0)}, "trials": 1, **argument})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"space": {"rate": (0.0, 1.0)}, "fixed": {"x": 1}}, "'train': got an unexpected keyword argument 'rate'"),
        ({"space": {"y": (0.0, 1.0)}}, "'train': missing a required argument: 'x'"),
    ],
)
def test_parameters_that_the_flow_does_not_have_are_refused_before_a_trial_begins(
    given: dict[str, Any], words: str
) -> None:
    """The first trial would fail with it, and count among those of the study."""
    with pytest.raises(ValueError, match=f"space and fixed do not fit the parameters of the flow {words}"):
        sweep(gpu()(flow(name="train")(lambda x, y=1: x)), trials=1, **given)


def test_a_space_that_returns_no_parameters_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"space\(trial\) returned None: let it return parameters by name"):
        space.propose(optuna.create_study(), lambda trial: None)  # type: ignore[arg-type,return-value]


def test_a_study_is_gone_on_with_in_its_own_direction(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(storage=storage, study_name="search")
    with pytest.raises(ValueError, match="'search' that is gone on with is to minimize"):
        sweep(gpu()(flow(lambda: 1)), {}, trials=1, direction="maximize", storage=storage, name="search")


@pytest.mark.parametrize("asked", [["adam", "sgd", "lion"], (1, 3)], ids=["another choice", "another kind"])
def test_a_study_is_gone_on_with_with_its_own_choices(tmp_path: Path, asked: Any) -> None:
    """Optuna said that it "does not support dynamic value space", when a trial had begun."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(storage=storage, study_name="search")
    propose(study, {"kind": ["adam", "sgd"], "lr": (0.1, 0.2)})
    assert space.changed_in(study, {"kind": ["adam", "sgd"], "lr": (0.05, 0.3), "new": [1]}) is None
    words = r"space\['kind'\]=.* is not allowed: the study 'search' .* has tried .*'adam', 'sgd'.* so far"
    with pytest.raises(ValueError, match=words):
        sweep(gpu()(flow(lambda kind: 1)), {"kind": asked}, trials=2, storage=storage, name="search")
    assert len(study.trials) == 1


def test_the_best_trial_is_the_first_row_and_pruned_ones_come_after() -> None:
    study = optuna.create_study(direction="maximize")
    space = {"x": distribution("x", (0.0, 10.0)), "kind": distribution("kind", ["a", "b"])}
    for x, state in ((1.0, None), (3.0, None), (9.0, TrialState.PRUNED), (2.0, TrialState.FAIL)):
        trial = study.ask(space)
        if state is TrialState.PRUNED:
            trial.report(x, 1)
        study.tell(trial, x if state is None else None, state=state)
    rows = table(study, "accuracy")
    assert [row["state"] for row in rows] == ["complete", "complete", "pruned", "fail"]
    assert [row["accuracy"] for row in rows[:3]] == ["3", "1", "9"]
    matplotlib.use("svg")
    picture = parallel_coordinates(study, "accuracy")
    assert picture is not None and picture.startswith(b"\x89PNG")
    assert matplotlib.get_backend() == "svg", "a notebook shows what is drawn after its sweep"
    assert parallel_coordinates(optuna.create_study(), "accuracy") is None


def test_a_parameter_that_is_called_as_a_column_hides_nothing() -> None:
    study = optuna.create_study()
    space = {name: distribution(name, [f"a {name}"]) for name in ("trial", "loss", "steps", "run", "lr")}
    study.tell(study.ask(space), 0.5)
    [row] = table(study, "loss")
    assert (row["trial"], row["loss"], row["steps"], row["run"], row["lr"]) == (0, "0.5", None, "", "a lr")
    assert all(row[f"{name} (parameter)"] == f"a {name}" for name in ("trial", "loss", "steps", "run"))
    assert parallel_coordinates(study, "loss") is None
    study.tell(study.ask(space), 0.7)
    assert parallel_coordinates(study, "loss")


def test_the_table_and_the_picture_are_made_in_an_async_flow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect gave coroutines there, which nobody awaited."""
    made: list[str | None] = []

    def create(self: Artifact, _sync: bool) -> SimpleNamespace:
        made.append(self.key)
        return SimpleNamespace(id="an artifact")

    monkeypatch.setattr(Artifact, "create", create)
    monkeypatch.setattr(artifacts, "flow_run", SimpleNamespace(id="a run"))
    study = optuna.create_study(study_name="search")
    for x in (0.1, 0.2):
        study.tell(study.ask({"x": distribution("x", (0.0, 1.0))}), x)

    async def search() -> None:
        artifacts.show(study, "loss")

    asyncio.run(search())
    assert made == ["search-trials", "search-parameters"]
