"""Which trial a search gives a free place to."""

from __future__ import annotations

import itertools
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID, uuid4

import httpx
import numpy as np
import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.exceptions import StorageInternalError
from optuna.samplers import BruteForceSampler, GridSampler
from optuna.trial import TrialState
from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.filesystems import LocalFileSystem
from prefect.results import ResultStore
from prefect.states import Completed, Crashed

from prefect_gpu import asha, gpu
from prefect_gpu.sweeps import runs
from prefect_gpu.sweeps.outcomes import ERROR
from prefect_gpu.sweeps.proposals import Proposer
from prefect_gpu.sweeps.search import RUN, Search
from prefect_gpu.sweeps.space import Space, propose


def test_a_search_with_too_few_trials_for_its_rungs_trains_the_best_one_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two at a rung, the best third is nobody. Else such a search would have no result."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [study.ask({"x": FloatDistribution(0.0, 1.0)}) for _ in range(3)]
    for trial, values in zip(trials, ((9.0,), (8.0, 7.0), (8.5, 6.0)), strict=True):
        for step, value in zip((1, 3), values, strict=False):
            trial.report(value, step)
    resumed: list[UUID] = []
    monkeypatch.setattr(runs, "resume", lambda run_id, words: resumed.append(run_id))
    train = cast(Any, None)  # no new trial is started
    proposer = Proposer(study, {"x": (0.0, 1.0)}, learned_cost=False)
    search = Search(
        train, study, proposer, fixed={}, objective="loss", watched_in=None, rungs=asha(min_steps=1, max_steps=9)
    )
    search._stopped = {trial.number: uuid4() for trial in trials}
    best = search._stopped[2]
    assert search._next(trials=3) and resumed == [best]
    assert not search._next(trials=3), "it trains"
    search._training.clear()
    study.tell(trials[2], 5.0)
    assert not search._next(trials=3) and resumed == [best]
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING, TrialState.RUNNING, TrialState.COMPLETE]


@pytest.mark.parametrize("sampler", [GridSampler({"x": [1.0, 2.0]}), BruteForceSampler()], ids=["grid", "brute-force"])
def test_a_grid_that_was_tried_as_a_whole_is_the_end(
    monkeypatch: pytest.MonkeyPatch, sampler: optuna.samplers.BaseSampler
) -> None:
    """Optuna's samplers then stop the study, which it refuses where it does not call the objective itself."""
    started = [uuid4(), uuid4()]
    monkeypatch.setattr(runs, "start", lambda train, parameters, about, tag: started[len(search._training)])
    study = optuna.create_study(sampler=sampler)
    search = of_study(study, {"x": [1.0, 2.0]})
    assert search._next(trials=9) and search._next(trials=9)
    for number in (0, 1):
        search._outcomes.tell(number, over(0.5 + number))
    assert not search._next(trials=9), "nothing is left to be tried"
    assert [(trial.state, trial.value) for trial in study.trials] == [
        (TrialState.COMPLETE, 0.5),
        (TrialState.COMPLETE, 1.5),
    ]


def test_a_run_whose_sweep_was_killed_before_it_took_it_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It trained for nobody, and its trial counted as failed."""
    study, run_id = optuna.create_study(study_name="of lr"), uuid4()
    study.ask({}), study.ask({})
    monkeypatch.setattr(runs, "begun", lambda tag: run_id if tag.startswith("of lr-trial-1-") else None)
    search = of_study(study, {})
    search._take_over()
    assert search._training == {run_id: 1} and study.trials[1].user_attrs[RUN] == str(run_id)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.RUNNING]


def test_a_trial_that_never_had_a_run_gives_its_place_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep was interrupted as it started the run. Called again, it had one trial less than it was asked for."""
    study = optuna.create_study()
    study.ask({})
    monkeypatch.setattr(runs, "begun", lambda tag: None)
    monkeypatch.setattr(runs, "start", lambda *_: uuid4())
    search = of_study(study, {"x": (0.0, 1.0)})
    search._take_over()
    assert study.trials[0].state is TrialState.FAIL and "before it had started" in study.trials[0].user_attrs[ERROR]
    assert search._next(trials=1) and list(search._training.values()) == [1]
    assert not search._next(trials=1)


def test_a_point_of_a_grid_whose_trial_never_had_a_run_is_tried_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the sampler it had been tried. So the sweep ended without it, or tried others twice."""
    space = {"x": [1.0, 2.0, 3.0]}
    study = optuna.create_study(sampler=GridSampler(space))
    propose(study, space)
    started: list[UUID] = []
    monkeypatch.setattr(runs, "begun", lambda tag: None)
    monkeypatch.setattr(runs, "start", lambda *_: started.append(uuid4()) or started[-1])
    search = of_study(study, space)
    search._take_over()
    while search._next(trials=3):
        (number,) = search._training.values()
        search._outcomes.tell(number, over(0.5))
        search._training.clear()
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, *[TrialState.COMPLETE] * 3]
    assert sorted(trial.params["x"] for trial in study.trials[1:]) == space["x"]


def test_what_is_tried_again_has_the_parameters_that_are_searched_now(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study()
    propose(study, {"x": (0.0, 1.0), "y": (0.0, 1.0)})
    tried: list[Any] = []
    monkeypatch.setattr(runs, "begun", lambda tag: None)
    monkeypatch.setattr(runs, "start", lambda train, parameters, about, tag: tried.append(parameters) or uuid4())
    search = of_study(study, {"x": (0.0, 1.0), "z": (0.0, 1.0)})
    search._take_over()
    assert search._next(trials=1) and not search._next(trials=1)
    assert tried == [study.trials[1].params] and tried[0].keys() == {"x", "z"}
    assert tried[0]["x"] == study.trials[0].params["x"]


def with_rate_or_x(trial: optuna.Trial) -> dict[str, Any]:
    """A space that gives every second trial a parameter that the flow lacks."""
    return {"x": 1.0} if trial.number % 2 else {"rate": 0.1}


def test_a_trial_with_parameters_that_the_flow_lacks_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep ended with it, and all that it had found in memory was lost."""
    search = of_study(optuna.create_study(study_name="search"), with_rate_or_x)
    search._train = gpu()(flow(name="train")(lambda x=0.0: x))
    words = "space and fixed do not fit the parameters of the flow 'train': got an unexpected keyword argument 'rate'"
    with pytest.raises(ValueError, match=words):
        search._next(trials=2)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "start", lambda *_: uuid4())
        assert search._next(trials=2), "the refused one does not count"
    assert search._next(trials=2) and not search._next(trials=2)
    assert [trial.state for trial in search._study.trials] == [TrialState.FAIL, TrialState.RUNNING, TrialState.FAIL]
    assert search._study.trials[2].user_attrs[ERROR] == words and list(search._training.values()) == [1]


def test_a_run_that_was_started_though_no_answer_came_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    def start(train: Any, parameters: Any, about: Any, tag: str) -> UUID:
        started.append(tag)
        raise httpx.ReadTimeout("")

    run_id = uuid4()
    monkeypatch.setattr(runs, "start", start)
    monkeypatch.setattr(runs, "begun", lambda tag: run_id if tag in started else None)
    search = of_study(optuna.create_study(), {"x": (0.0, 1.0)})
    with pytest.raises(httpx.ReadTimeout):
        search._next(trials=1)
    assert search._next(trials=1) and search._training == {run_id: 0} and len(started) == 1


def test_a_result_that_is_not_a_number_is_a_failure_with_words() -> None:
    study = optuna.create_study()
    study.ask({})
    of_study(study, {})._outcomes.tell(0, over({"loss": float("nan")}))
    assert study.trials[0].state is TrialState.FAIL
    assert "{'loss': nan}, which cannot be compared" in study.trials[0].user_attrs[ERROR]


def test_whoever_asks_for_no_more_trials_than_there_were_is_told_that_none_is_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A changed training seemed to be searched, and the results of the old one were returned."""
    study = optuna.create_study(study_name="search")
    study.tell(study.ask({}), 0.5)
    of_study(study, {})._run(1, 1, None, lambda: None)
    assert [text for text in caplog.messages if "none is begun" in text] == [
        "The study 'search' has 1 trial of an earlier sweep, and trials=1 asks for no more: none is begun. For more "
        "trials, give a larger number; to search anew, give another name=."
    ]


async def test_a_result_that_cannot_be_read_just_now_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The share that results are on was away for a moment, and trainings of hours counted as failed."""
    kept = tmp_path / "results"
    record = ResultStore(result_storage=LocalFileSystem(basepath=str(kept))).create_result_record(0.5, key="one")
    await ResultStore(result_storage=LocalFileSystem(basepath=str(kept))).apersist_result_record(record)
    run = over(record.metadata).model_copy(update={"id": uuid4()})
    study = optuna.create_study()
    study.ask({}), study.ask({})
    search = of_study(study, {})
    search._training = {run.id: 0}
    monkeypatch.setattr(search._watch, "over", lambda ids: [(run.id, run)])
    kept.rename(tmp_path / "away")
    for _ in range(2):
        assert search._look() and search._training and search._has_place(1)
    assert len([text for text in caplog.messages if "result of trial 0 cannot be read" in text]) == 1
    (tmp_path / "away").rename(kept)
    assert search._look() and not search._training and not search._outcomes.unread
    assert study.trials[0].value == 0.5

    kept.rename(tmp_path / "away")
    search._training = {run.id: 1}
    search._look()
    search._outcomes.unread[run.id] -= 601.0
    search._look()
    assert study.trials[1].state is TrialState.FAIL and "does not exist" in study.trials[1].user_attrs[ERROR]


class OfTwo:
    """A tensor of two numbers, as PyTorch has it."""

    def __float__(self) -> float:
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")


class Strange:
    """Has a value as a mapping does, and gives none."""

    def __float__(self) -> float:
        raise KeyError("lost")


@pytest.mark.parametrize(
    ("result", "value"),
    [
        (np.float32(0.5), 0.5),
        (np.array([0.5]), 0.5),  # a report takes it
        ({"loss": np.array(0.5)}, 0.5),
        (10**400, float("inf")),
        ("0.5", 0.5),
        (OfTwo(), None),
        (Strange(), None),
        ((0.5, 0.5), None),
        (None, None),
    ],
    ids=itertools.count(),
)
def test_whatever_a_flow_returns_is_a_number_or_a_failure(result: Any, value: float | None) -> None:
    study = optuna.create_study()
    study.ask({})
    of_study(study, {})._outcomes.tell(0, over(result))
    assert study.trials[0].value == value
    assert study.trials[0].state is (TrialState.FAIL if value is None else TrialState.COMPLETE)


def of_study(study: optuna.Study, space: Space, watched_in: str | None = None) -> Search:
    """A search whose flow nobody runs."""
    train, proposer = Mock(), Proposer(study, space, learned_cost=False)
    return Search(train, study, proposer, fixed={}, objective="loss", watched_in=watched_in, rungs=None)


def over(result: Any) -> FlowRun:
    """A run that has returned this."""
    return FlowRun(flow_id=uuid4(), state=Completed(data=result))


@pytest.mark.parametrize(("started", "may"), [(0, False), (1, True)])
def test_a_trial_that_was_refused_is_over_at_once(started: int, may: bool) -> None:
    """It has never run, so no worker brings it back, as one does that was stopped while it ran."""
    run = FlowRun(flow_id=uuid4(), run_count=started, job_variables={"preemptible": True}, state=Crashed())
    assert runs._may_be_tried_again(run) is may


def test_a_study_whose_database_is_out_of_reach_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program has locked it, say, or it is restarted. Results that come meanwhile are told later."""
    path = tmp_path / "study.db"
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 0.0}})
    study = optuna.create_study(storage=storage)
    search = of_study(study, {"x": (0.0, 1.0)})
    run = over(0.5).model_copy(update={"id": uuid4()})
    monkeypatch.setattr(runs, "start", lambda *_: run.id)
    monkeypatch.setattr(search._watch, "over", lambda ids: [(run.id, run)])
    assert search._next(trials=2)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for _ in range(2):
            assert search._reached(search._look, asks_study=False) is None
            assert search._reached(lambda: search._next(trials=2)) is None
        assert [text for text in caplog.messages if "out of reach" in text] == [
            "The study's database is out of reach, and the sweep waits for it: database is locked"
        ]
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 601.0)
        with pytest.raises(StorageInternalError):
            search._reached(search._look, asks_study=False)
        other.execute("ROLLBACK")
    assert search._reached(search._look, asks_study=False)
    assert (study.trials[0].state, study.trials[0].value) == (TrialState.COMPLETE, 0.5)


def test_a_trial_that_was_begun_as_the_database_failed_is_not_taken_for_one_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = optuna.create_study()
    search = of_study(study, {"x": (0.0, 1.0)})

    def fails(*_: object) -> Any:
        study.ask({})
        raise StorageInternalError

    with monkeypatch.context() as patch, pytest.raises(StorageInternalError):
        patch.setattr(search._proposer, "next", fails)
        search._next(trials=2)
    monkeypatch.setattr(runs, "start", lambda *_: uuid4())
    assert search._next(trials=1), "one that has no run gives its place to another"
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.RUNNING]
    assert not search._next(trials=1)


def test_a_result_that_was_told_before_its_answer_was_lost_is_told_once() -> None:
    study = optuna.create_study()
    study.ask({})
    search = of_study(study, {})
    for _ in range(2):
        search._outcomes.tell(0, over(0.5))
    search._outcomes.failed(0, "its flow run was deleted")
    assert study.trials[0].value == 0.5 and ERROR not in study.trials[0].user_attrs


def test_trials_that_never_report_what_is_compared_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its flow returns it, so the sweep went on, and no trial ever stopped, without a word."""
    study = optuna.create_study()
    search = of_study(study, {}, watched_in="sqlite:///study.db")
    for value in (None, None, 1.5):
        trial = study.ask({})
        if value is not None:
            trial.report(value, 1)
        search._outcomes.tell(trial.number, over(0.5))
    assert [text.partition(" at a step")[0] for text in caplog.messages if "compared" in text] == [
        "Trial 0 was compared with no other one while it trained: it reported no 'loss'"
    ]


def test_a_refusal_after_a_long_absence_is_waited_for_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway refuses while a server starts. The time that it was away counted, too, and the sweep ended at once."""
    search = of_study(optuna.create_study(), {})
    request, now = httpx.Request("POST", "http://prefect/api"), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    refusal = httpx.HTTPStatusError("404", request=request, response=httpx.Response(404, request=request))

    def fails(error: Exception) -> Any:
        return Mock(side_effect=error)

    assert search._reached(fails(httpx.ConnectError("away"))) is None
    now += 1200.0
    assert search._reached(fails(refusal)) is None
    now += 599.0
    assert search._reached(fails(refusal)) is None
    now += 2.0
    with pytest.raises(httpx.HTTPStatusError):
        search._reached(fails(refusal))
