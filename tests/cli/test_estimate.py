from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.storage.history import History, HistoryRow
from tests.cli.conftest import InProcess
from tests.cli.test_status import served
from tests.page.scene import Scene
from tests.reporting.estimates import estimated
from tests.reporting.rows import finished


@pytest.fixture
def filled(state: Path) -> None:
    _fill(
        state,
        *[
            estimated(at, trained_s=8.0 + at % 2, run_name=f"crab-{at}", category="cv", device_kind="virtual")
            for at in range(9)
        ],
        estimated(9, flow="tune", requested_gpus=2),
        finished("broken", 700, outcome="failed", flow_name="broken"),
    )


def _fill(state: Path, *rows: HistoryRow) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        for row in rows:
            history.record(row)


def test_an_estimate_and_where_it_comes_from(run_cli: InProcess, filled: None) -> None:
    done = run_cli("estimate", "train", "-p", "model.width=16")
    assert done.exit_code == 0
    assert "A run of train on 1 virtual device\nFrom 9 finished runs of train.\n" in done.stdout
    assert "As in the newest run: epochs=10." in done.stdout
    [training] = [line for line in done.stdout.splitlines() if line.startswith("Training")]
    assert 8.0 <= float(training.split()[1]) <= 9.0
    for part in ("Memory, peak", "1 GiB", "Start to end", "90% lie between", "crab-", "each from the others"):
        assert part in done.stdout
    assert "steps" in done.stdout and "as in 9 runs" in done.stdout


def test_eighty_columns_are_enough(run_cli: InProcess, filled: None) -> None:
    for arguments in ((), ("train", "--runs")):
        done = run_cli("estimate", *arguments, COLUMNS="80")
        assert done.exit_code == 0 and max(map(len, done.stdout.splitlines())) <= 80
        assert "…" not in done.stdout


def test_json(run_cli: InProcess, filled: None) -> None:
    arguments = ("-p", "model.width=16", "-p", "opt=adam", "-p", "lr=1e-3", "--gpus", "2", "--category", "nlp")
    told = json.loads(run_cli("estimate", "train", *arguments, "--json").stdout)
    known = told["explanation"]["known"]
    assert known["parameters"] == {"epochs": 10, "model": {"width": 16}, "opt": "adam", "lr": 0.001}
    assert (known["gpus"], known["category"], known["device_kind"]) == (2, "nlp", "virtual")
    assert told["taken_over"] == {"epochs": 10}
    assert told["explanation"]["estimate"]["targets"]["memory_bytes"]["median"] == pytest.approx(2**30, rel=0.01)
    assert told["accuracy"][0]["runs"] == 9


def test_what_is_not_given_is_as_in_the_newest_run(run_cli: InProcess, filled: None) -> None:
    known = json.loads(run_cli("estimate", "tune", "--json").stdout)["explanation"]["known"]
    assert known["gpus"] == 2 and known["parameters"] == {"epochs": 10, "model": {"width": 16}}


@pytest.mark.parametrize("value", ["NaN", "1e400", "-Infinity", "[1, NaN]", "adam", "", "a=b"])
def test_what_is_no_finite_json_is_text(run_cli: InProcess, filled: None, value: str) -> None:
    told = json.loads(run_cli("estimate", "train", "-p", f"epochs={value}", "--json").stdout)
    assert told["explanation"]["known"]["parameters"]["epochs"] == value


def test_a_flow_that_is_new_is_estimated_on_request(run_cli: InProcess, filled: None) -> None:
    done = run_cli("estimate", "other", "--new", "-p", "epochs=3")
    assert done.exit_code == 0 and "Nothing can be estimated: no run like it has finished yet." in done.stdout


def test_a_flow_whose_runs_all_failed(run_cli: InProcess, filled: None) -> None:
    done = run_cli("estimate", "broken")
    assert done.exit_code == 0 and "Nothing can be estimated" in done.stdout


def test_how_good_estimates_have_been(run_cli: InProcess, filled: None) -> None:
    done = run_cli("estimate", "--runs")
    assert done.exit_code == 0
    [train, all_flows] = [
        line.split() for line in done.stdout.splitlines() if line.startswith(("train  ", "All flows"))
    ]
    assert train == ["train", "9", "25%", "25%", "100%", "20%", "0.0%", "100%"]
    assert all_flows[2] == "10"
    assert "The newest 10 runs that had been estimated" in done.stdout and "tune id-tune-" in done.stdout
    told = json.loads(run_cli("estimate", "--json").stdout)
    assert [(one["program"], one["runs"]) for one in told["accuracy"]] == [(None, 10), ("train", 9), ("tune", 1)]


@pytest.mark.slow
def test_pictures(run_cli: InProcess, filled: None, tmp_path: Path) -> None:
    png = tmp_path / "accuracy.png"
    assert f"Wrote 10 runs to {png}.\n" in run_cli("estimate", "--plot", str(png)).stdout
    assert png.exists()
    assert "Wrote 1 run to" in run_cli("estimate", "tune", "--plot", str(png)).stdout
    json.loads(run_cli("estimate", "--json", "--plot", str(png)).stdout)


def test_before_anything_was_estimated(run_cli: InProcess, state: Path, tmp_path: Path) -> None:
    _fill(state, finished("a", 0))
    done = run_cli("estimate", "--plot", str(tmp_path / "a.png"))
    assert "No run that had been estimated has completed yet" in done.stdout
    assert done.exit_code == 1 and "nothing to draw" in done.stderr


def test_no_history_yet(run_cli: InProcess, state: Path) -> None:
    for arguments in ((), ("train",), ("train", "--json")):
        done = run_cli("estimate", *arguments)
        assert done.exit_code == 1 and done.stdout == ""
        assert "No run has finished yet" in done.stderr and "whole devices" in done.stderr
    assert not state.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["trian"], 2, "Did you mean train? Flows of the history: broken, tune, train. If trian is new, --new"),
        (["xyz"], 2, "No run of xyz has finished yet. Flows of the history"),
        ([""], 2, "FLOW '' is no name of a flow: give one, or leave it out"),
        (["train", "--new"], 2, "leave out --new"),
        (["train", "-p", "lr"], 2, "--param lr is no KEY=VALUE: write --param lr=0.1"),
        (["train", "-p", "=1"], 2, "is no KEY=VALUE"),
        (["train", "--deadline", "6h", "-jv", "gpus"], 2, "--job-variable gpus is no KEY=VALUE: write --job-variable"),
        (["train", "-p", "a..b=1"], 2, "is no KEY=VALUE"),
        (["train", "-p", "a=1", "-p", "a=2"], 2, "a was given before"),
        (["train", "-p", "a=1", "-p", "a.b=2"], 2, "a was given a value of its own before"),
        (["train", "-p", "a.b=1", "-p", "a=2"], 2, "a was given before"),
        (["-p", "a=1"], 2, "Name the flow"),
        (["train", "--gpus", "-1"], 2, "gpus"),
        (["train", "--gpus", "inf"], 2, "gpus"),
        (["train", "--gpus", "0.5"], 2, "gpus"),
        (["--json", "--plot", "/no/such/folder/x.png"], 1, "/no/such/folder/x.png cannot be written"),
    ],
)
def test_what_cannot_be_done_is_said_on_standard_error(
    run_cli: InProcess, filled: None, arguments: list[str], code: int, words: str
) -> None:
    done = run_cli("estimate", *arguments)
    assert done.exit_code == code
    assert words in done.stderr


def test_an_elastic_flow_shows_its_speed_by_number_of_devices(run_cli: InProcess, state: Path) -> None:
    own = {"gpus": 1, "steps": 100, "max_gpus": 5, "speeds": {"1": [50, 5.0], "4": [75, 3.0]}}
    _fill(state, estimated(0, trained_s=4.0, requested_gpus=1, on=("a", "b", "c", "d"), features=own))
    said = run_cli("estimate", "train", "--gpus", "1", COLUMNS="80").stdout
    found = [line.split() for line in said.partition("Its speed on other numbers")[2].splitlines()]
    known = {cells[0]: cells[1:] for cells in found if cells and cells[0] in "12345"}
    assert sorted(known) == ["1", "2", "3", "4", "5"]
    assert known["1"][-5:] == known["4"][-5:] == ["1", "run", "on", "this", "count"]
    assert known["2"][-3:] == ["other", "counts,", "cautiously"]
    assert float(known["4"][1]) == pytest.approx(2.5, rel=0.1)
    speeds = json.loads(run_cli("estimate", "train", "--json").stdout)["explanation"]["speeds"]
    assert [one["runs"] for one in speeds] == [1, 0, 0, 1, 0]


def test_a_flow_that_only_ever_had_one_device_shows_no_other_speeds(run_cli: InProcess, filled: None) -> None:
    assert "Its speed on other numbers" not in run_cli("estimate", "train").stdout


def test_the_pool_is_asked_for_a_promise_and_nothing_is_submitted(
    run_cli: InProcess, filled: None, state: Path
) -> None:
    scene = Scene(time.time(), [])
    with served(state, scene):
        kept = run_cli("estimate", "tune", "--deadline", "6h", "-jv", "time_limit=2h", "-p", "epochs=3")
        late = run_cli("estimate", "tune", "--deadline", "1h")
        told = run_cli("estimate", "tune", "--deadline", "1h", "--json")
        wrong = run_cli("estimate", "nonsense", "--new", "--deadline", "1h")
        long = run_cli("estimate", "tune", "--deadline", "6h", "-p", f"names={'x' * 100_000}")
    assert long.exit_code == 0 and "would promise" in long.stdout, "an address has room for 64 KiB"
    assert kept.exit_code == 0 and "would promise" in kept.stdout and "with 90%" in kept.stdout
    assert late.exit_code == told.exit_code == 3 and "The earliest that it would promise now is 2096" in late.stdout
    assert json.loads(told.stdout)[0]["probability"] is None
    assert wrong.exit_code == 2 and "gpus=-1" in wrong.stderr
    asked = scene.asked[0]
    assert asked["flow"] == "tune" and asked["parameters"]["epochs"] == 3
    assert asked["job_variables"]["deadline"] == "6h" and asked["job_variables"]["time_limit"] == "2h"
    assert asked["job_variables"]["gpus"] == 2, "as in its newest run"


def test_what_one_pool_cannot_make_sense_of_another_one_answers(run_cli: InProcess, filled: None, state: Path) -> None:
    class Other(Scene):
        name = "another"

        def promise(self, asked: dict[str, Any]) -> dict[str, Any]:
            raise ValueError("gpu_kind='A100' is not allowed: this pool has none")

    with served(state, Other(time.time(), []), pool="another"), served(state, Scene(time.time(), [])):
        done = run_cli("estimate", "tune", "--deadline", "6h")
    assert done.exit_code == 0 and "Pool gpus would promise" in done.stdout


def test_a_promise_of_a_pool_with_brackets_in_its_name(run_cli: InProcess, filled: None, state: Path) -> None:
    scene = Scene(time.time(), [])
    scene.name = "gpus[a100]"
    with served(state, scene, pool=scene.name):
        assert "Pool gpus[a100] would promise" in run_cli("estimate", "tune", "--deadline", "6h").stdout


def test_a_pool_whose_worker_was_killed_promises_nothing(run_cli: InProcess, filled: None, state: Path) -> None:
    """It has left its note, and the worker of another pool listens at its port by now."""
    with served(state, Scene(time.time(), [])) as url:
        (state / "pages" / "killed.json").write_text(json.dumps({"pool": "killed", "url": url, "pid": 1}))
        told = json.loads(run_cli("estimate", "tune", "--deadline", "6h", "--json").stdout)
    assert [one["pool"] for one in told] == ["gpus"]


def test_a_promise_needs_a_flow_and_a_worker(run_cli: InProcess, filled: None) -> None:
    assert run_cli("estimate", "--deadline", "6h").exit_code == 2
    assert run_cli("estimate", "train", "-jv", "time_limit=2h").exit_code == 2
    assert "Did you mean train?" in run_cli("estimate", "trian", "--deadline", "6h").stderr
    nobody = run_cli("estimate", "train", "--deadline", "6h")
    assert nobody.exit_code == 1 and "No worker answers" in nobody.stderr
