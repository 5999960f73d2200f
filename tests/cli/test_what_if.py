from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_gpu.storage.history import History
from tests.cli.conftest import InProcess
from tests.reporting.rows import BEGIN, finished

BOTH = ["--present", "fifo"]


@pytest.fixture
def filled(state: Path) -> None:
    """On one device: a long run, and behind it another long and a short one, in the order of their submission."""
    with History(f"sqlite:///{state / 'history.db'}") as history:
        for name, submitted, granted, trained in (("a", 0, 0, 98), ("b", 1, 100, 98), ("c", 2, 200, 8)):
            history.record(
                finished(
                    name, granted, submitted_at=BEGIN + submitted, waited_s=granted - submitted, prepared_s=1.0,
                    trained_s=float(trained), saved_s=1.0, ended_at=BEGIN + granted + trained + 2,
                )
            )  # fmt: skip
        history.record(finished("light", 0, on=()))


def test_recorded_simulated_as_it_was_and_what_if(run_cli: InProcess, filled: None) -> None:
    done = run_cli("what-if", "--profile", "sjf", "--knowledge", "exact", "--json", *BOTH)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == ["left_out", "recorded", "control", "what_if"]
    assert found["left_out"] == {"held no device": 1}
    recorded, control, what_if = found["recorded"], found["control"], found["what_if"]
    assert recorded["runs"] == control["runs"] == what_if["runs"] == 3
    assert recorded["mean_jct_s"] == pytest.approx((100 + 199 + 208) / 3)
    assert recorded["mean_wait_s"] == pytest.approx((0 + 99 + 198) / 3)
    assert recorded["makespan_s"] == pytest.approx(210)
    assert recorded["gpu_busy_fraction"] == pytest.approx(204 / 210)
    for name in ("mean_jct_s", "mean_wait_s", "makespan_s", "gpu_busy_fraction"):
        assert control[name] == pytest.approx(recorded[name])
    assert (control["profile"], control["knowledge"]) == ("fifo", "learned")
    assert (what_if["profile"], what_if["knowledge"], what_if["gpus"]) == ("sjf", "exact", 1)
    assert what_if["mean_jct_s"] == pytest.approx((100 + 209 + 108) / 3)


def test_the_past_of_a_pool_that_does_not_learn_is_simulated_without_estimates(
    run_cli: InProcess, filled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_INTEGRATIONS_GPU_LEARN", "false")
    found = json.loads(run_cli("what-if", "--gpus", "+1", "--json", *BOTH).stdout)
    assert (found["control"]["knowledge"], found["what_if"]["knowledge"]) == ("none", "learned")


def test_more_devices(run_cli: InProcess, filled: None) -> None:
    found = json.loads(run_cli("what-if", "--gpus", "+2", "--json", *BOTH).stdout)
    assert found["what_if"]["profile"] == "fifo" and found["what_if"]["gpus"] == 3
    assert found["what_if"]["mean_wait_s"] == pytest.approx(0)


def test_the_table(run_cli: InProcess, filled: None) -> None:
    done = run_cli("what-if", "--profile", "sjf", "--gpus", "+1", *BOTH)
    assert done.exit_code == 0, done.stderr
    for words in (
        "Recorded",
        "Simulated as it was",
        "fifo, 1 device",
        "What if",
        "sjf, 2 devices",
        "durations learned",
    ):
        assert words in done.stdout
    assert "1 run held no device and is left out." in done.stdout
    assert "The simulation of the past is 0% below what was recorded." in done.stdout


def test_a_policy_that_fails_is_named_with_its_place(run_cli: InProcess, filled: None, breaks: str) -> None:
    for options in (["--profile", "breaks", *BOTH], ["--profile", "fifo", "--present", "breaks"]):
        done = run_cli("what-if", *options)
        assert done.exit_code == 1 and breaks in done.stderr


def test_no_history_yet(run_cli: InProcess, state: Path) -> None:
    done = run_cli("what-if", "--profile", "sjf")
    assert done.exit_code == 1
    assert "No run has finished yet." in done.stderr
    assert not state.exists()


def test_no_run_held_a_device(run_cli: InProcess, state: Path) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(finished("light", 0, on=()))
    assert "No run of the history has held a device yet." in run_cli("what-if", "--gpus", "+1").stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "Say what to change: --profile NAME, --gpus +2, or both."),
        (["--profile", "best"], "profile='best' is not known: choose one of "),
        (["--gpus", "+1", "--present", "best"], "profile='best' is not known"),
        (["--gpus", "2"], "--gpus 2 is no change: write +2 for two more devices, or -1 for one less."),
        (["--gpus", "-1"], "--gpus -1 leaves none of 1 device: take"),
        (["--profile", "sjf", "--knowledge", "all"], "--knowledge all is none of exact, learned, none."),
    ],
)
def test_what_cannot_be_asked(run_cli: InProcess, filled: None, more: list[str], words: str) -> None:
    done = run_cli("what-if", *more)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stdout == ""
