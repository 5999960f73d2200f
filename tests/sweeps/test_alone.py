"""Of two sweeps with one study at once, one is told so."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from prefect import flow

from prefect_gpu import gpu
from prefect_gpu.sweeps import SweepError, alone, sweep
from prefect_gpu.sweeps.alone import SWEPT_BY, Alone


@pytest.fixture
def study(tmp_path: Path) -> optuna.Study:
    return optuna.create_study(storage=f"sqlite:///{tmp_path / 'study.db'}", study_name="search")


def of_another(study: optuna.Study, **about: Any) -> dict[str, Any]:
    """The sign of a sweep that is no process of this machine."""
    sign = {**Alone(study)._sign, "host": "node7", "pid": 42, "boot": "of another machine", "beat": 0, **about}
    study.set_user_attr(SWEPT_BY, sign)
    return sign


def test_a_study_that_another_sweep_goes_on_with_is_refused(
    study: optuna.Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the trials of the other one for left, and ended with a traceback when that one told their results."""
    sign = of_another(study)
    monkeypatch.setattr(time, "sleep", lambda _: study.set_user_attr(SWEPT_BY, {**sign, "beat": 1}))
    study.ask({})
    train = gpu()(flow(lambda: 1))
    with pytest.raises(SweepError, match="'search' is searched by another sweep: process 42 on node7"):
        sweep(train, {}, trials=2, storage=f"sqlite:///{tmp_path / 'study.db'}", name="search")
    assert [trial.state.name for trial in study.trials] == ["RUNNING"]


def test_one_that_gives_no_sign_any_more_is_gone(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    of_another(study)
    monkeypatch.setattr(alone, "_SILENCE_S", 0.05)
    monkeypatch.setattr(alone, "_LOOK_S", 0.01)
    with Alone(study) as sweeping:
        sweeping.check()


@pytest.mark.parametrize("over", [None, {"pid": 2**22 + 1}], ids=["it has ended", "it was killed here"])
def test_one_that_is_known_to_be_over_is_not_waited_for(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch, over: dict[str, Any] | None
) -> None:
    with Alone(study) as sweeping:
        sign = study.user_attrs[SWEPT_BY]
    assert study.user_attrs[SWEPT_BY] is None and sweeping._sign["sweep"] == sign["sweep"]
    if over is not None:
        study.set_user_attr(SWEPT_BY, {**sign, **over})
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it is waited for"))
    with Alone(study):
        pass


def test_a_sweep_that_stood_still_while_another_one_took_over_ends(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "_BEAT_S", 0.01)
    with pytest.raises(SweepError, match="process 42 on node7 goes on with its study"), Alone(study) as sweeping:
        while sweeping._thread.is_alive():  # its own sign may have come just after that of the other one
            sign = of_another(study, sweep="another")
            sweeping._thread.join(0.05)
        sweeping.check()
    assert study.user_attrs[SWEPT_BY] == sign, "it is the other one's"
