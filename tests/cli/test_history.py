from __future__ import annotations

import csv
import dataclasses
import io
import json
from pathlib import Path

import pytest

from prefect_gpu.cli.history import _seconds, write_csv
from prefect_gpu.storage.history import History, HistoryRow
from prefect_gpu.storage.row import ContentionRow, Part
from tests.cli.conftest import Cli, InProcess

ROWS = [
    HistoryRow(
        "id-1", "train", "completed", ended_at=1_700_000_000.0, run_name="wise-crab", devices=("GPU-1", "GPU-2"),
        device_kind="NVIDIA H100", waited_s=5.0, prepared_s=12.0, trained_s=3700.0, saved_s=0.5, steps_done=20,
        final_loss=0.123456, parameters={"lr": 0.1, "model": {"depth": 3}, "layers": [1, 2]},
        features={"batch_size": 8},
    ),
    HistoryRow(
        "id-2", "tune", "failed", ended_at=1_700_000_100.0, attempt=2, run_name="[red]odd[/red]",
        devices=("virtual-0",), device_kind="virtual", virtual=True, message="out of memory\nmore",
        parameters={"lr": 0.2, "seed": None},
    ),
    HistoryRow("id-3", "train", "cancelled", ended_at=1_700_000_200.0),
]  # fmt: skip


@pytest.fixture
def filled(state: Path) -> str:
    url = f"sqlite:///{state / 'history.db'}"
    with History(url) as history:
        for row in ROWS:
            history.record(row)
    return url


def test_no_history_yet_creates_none(run_cli: InProcess, state: Path) -> None:
    done = run_cli("history")
    assert done.exit_code == 0
    assert "No run has finished yet" in done.stdout
    assert not state.exists()


def test_a_folder_in_brackets_is_shown_as_it_is(run_cli: InProcess, tmp_path: Path) -> None:
    for name in ("[old]", "[/gpu]"):
        done = run_cli("history", PREFECT_INTEGRATIONS_GPU_STATE_DIR=str(tmp_path / name))
        assert done.exit_code == 0 and f"/{name}/history.db" in done.stdout


def test_the_table_newest_first(run_cli: InProcess, filled: str) -> None:
    done = run_cli("history")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    third, second, first = [line for line in lines if " train " in line or " tune " in line]
    assert "id-3" in third
    assert "cancelled" in third
    assert "[red]odd[/red] #2" in second
    assert "virtual" in second
    assert "failed" in second
    assert "[red]odd[/red] #2 failed: out of memory\n" in done.stdout
    for part in ("wise-crab", "2× H100", "5.0s", "12s", "1h01m", "0.5s", "20", "0.1235", "completed"):
        assert part in first


def test_a_terminal_without_columns_shows_the_table_all_the_same(run_cli: InProcess, filled: str) -> None:
    assert run_cli("history", COLUMNS="0").stdout == run_cli("history", COLUMNS="160").stdout


def test_what_an_exception_says_is_shortened_below_the_table(run_cli: InProcess, state: Path) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(dataclasses.replace(ROWS[1], message="ValueError: " + "x" * 300_000))
    *_, reason = run_cli("history").stdout.splitlines()
    assert reason.startswith("[red]odd[/red] #2 failed: ValueError: xxx")
    assert reason.endswith("x…") and len(reason) < 400


def test_eighty_columns_have_room_for_everything(run_cli: InProcess, filled: str) -> None:
    done = run_cli("history", COLUMNS="80")
    [first] = [line for line in done.stdout.splitlines() if "wise-crab" in line]
    assert len(first) <= 80
    for part in ("train", "2× H100", "5.0s", "12s", "1h01m", "0.5s", "20", "0.1235", "completed"):
        assert part in first


def test_forty_columns_show_what_they_have_room_for_and_say_what_they_leave_out(
    run_cli: InProcess, filled: str
) -> None:
    done = run_cli("history", COLUMNS="40")
    [first] = [line for line in done.stdout.splitlines() if "1h01m" in line]
    for part in ("wise", "train", "0.1235", "completed"):
        assert part in first
    assert "Left out, as there is no room: Device, Waited, Prepared, Saved, Steps." in " ".join(done.stdout.split())


def test_sums_are_by_somebody_in_forty_columns_too(run_cli: InProcess, filled: str) -> None:
    """The column of the names was gone: figures were kept whole at its cost."""
    shown = run_cli("history", "--by", "program", COLUMNS="40").stdout
    assert "Program" in shown and "tune" in shown and "train" in shown


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "–"),
        (0.0, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (3599.6, "1h00m"),
        (7500.0, "2h05m"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert _seconds(seconds) == words


def test_chosen_rows(run_cli: InProcess, filled: str) -> None:
    def ids(*arguments: str) -> list[str]:
        return [row["run_id"] for row in json.loads(run_cli("history", "--json", *arguments).stdout)]

    assert ids() == ["id-3", "id-2", "id-1"]
    assert ids("--limit", "1") == ["id-3"]
    assert ids("--flow", "train", "--outcome", "completed") == ["id-1"]
    assert "No run of this kind" in run_cli("history", "--flow", "nothing").stdout
    assert "1 of 3 runs" in run_cli("history", "--limit", "1").stdout


def test_json_and_csv_have_every_column(run_cli: InProcess, state: Path) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(HistoryRow("id", "train", "completed", ended_at=1.0, prepared_behind=True, gate_wait_s=2.5))
        columns = {item.name for item in dataclasses.fields(HistoryRow)}
    [told] = json.loads(run_cli("history", "--json").stdout)
    assert set(told) == columns and told["gate_wait_s"] == 2.5
    [line] = csv.DictReader(io.StringIO(run_cli("history", "--csv", "-").stdout))
    assert set(line) >= columns - {"parameters", "features"} and line["gate_wait_s"] == "2.5"


def test_csv_on_standard_output(run_cli: InProcess, filled: str) -> None:
    done = run_cli("history", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["run_id"] for row in rows] == ["id-3", "id-2", "id-1"]
    assert rows[2]["parameters.lr"] == "0.1"
    assert rows[2]["parameters.model.depth"] == "3"
    assert json.loads(rows[2]["parameters.layers"]) == [1, 2]
    assert rows[2]["features.batch_size"] == "8"
    assert rows[2]["devices"] == "GPU-1 GPU-2"
    assert rows[1]["message"] == "out of memory\nmore"
    assert rows[0]["parameters.lr"] == ""


def test_a_gang_is_shown_with_all_its_devices(run_cli: InProcess, state: Path) -> None:
    parts = tuple(Part(node=node, devices=(f"{node}/virtual-0",), role="worker") for node in ("n1", "n2", "n3"))
    devices = tuple(device for part in parts for device in part["devices"])
    gang = HistoryRow(
        "id", "train", "completed", ended_at=1.0, run_name="gang", node="n1", devices=devices, parts=parts, virtual=True
    )
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(gang)
    assert "3× virtual, 3 nodes" in run_cli("history").stdout
    [told] = json.loads(run_cli("history", "--json").stdout)
    assert [part["node"] for part in told["parts"]] == ["n1", "n2", "n3"] and told["devices"] == list(devices)
    [line] = csv.DictReader(io.StringIO(run_cli("history", "--csv", "-").stdout))
    assert json.loads(line["parts"])[2] == {"node": "n3", "devices": ["n3/virtual-0"], "role": "worker"}
    assert line["devices"].split() == list(devices)


def test_a_device_of_which_nothing_is_known_is_not_called_a_gpu(run_cli: InProcess, state: Path) -> None:
    """A run that was adopted when its virtual device was gone was said to have trained on a GPU."""
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(HistoryRow("id", "train", "completed", ended_at=1.0, run_name="left", devices=("virtual-1",)))
    [line] = [line for line in run_cli("history").stdout.splitlines() if "left" in line]
    assert "device" in line and "GPU" not in line


def test_csv_into_a_file(run_cli: InProcess, filled: str, tmp_path: Path) -> None:
    done = run_cli("history", "--csv", str(tmp_path / "runs.csv"), "--flow", "tune")
    assert "Wrote 1 run to " in done.stdout
    assert len(list(csv.DictReader((tmp_path / "runs.csv").open(newline="")))) == 1


def test_csv_of_a_message_with_a_progress_bar_has_one_row_of_it() -> None:
    file = io.StringIO(newline="")
    write_csv([dataclasses.replace(ROWS[0], message="epoch 1\repoch 2\rboom"), ROWS[2]], file)
    first, second = csv.DictReader(io.StringIO(file.getvalue(), newline=""))
    assert (first["message"], second["run_id"]) == ("epoch 1\repoch 2\rboom", "id-3")
    assert file.getvalue().endswith("\n") and "\r\n" not in file.getvalue()


def test_csv_without_rows_has_a_header() -> None:
    file = io.StringIO()
    write_csv([], file)
    assert file.getvalue().startswith("run_id,flow_name,")


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"),
    [
        (["--outcome", "done"], {}, 2, "completed, failed, cancelled, crashed"),
        (["--limit", "0"], {}, 2, "limit"),
        (["--csv", "-", "--json"], {}, 2, "exclude each other"),
        (["--csv", "/no/such/folder/x.csv"], {}, 1, "cannot be written"),
        ([], {"PREFECT_INTEGRATIONS_GPU_HISTORY_URL": "mysql://me:geheim@h/x"}, 1, "does not work with"),
        ([], {"PREFECT_INTEGRATIONS_GPU_HISTORY_URL": "postgresql://me:geheim@127.0.0.1:1/x"}, 1, "server runs"),
    ],
)
def test_what_cannot_be_done_is_said_on_standard_error(
    run_cli: InProcess, arguments: list[str], environ: dict[str, str], code: int, words: str
) -> None:
    done = run_cli("history", *arguments, **environ)
    assert done.exit_code == code
    assert words in done.stderr
    assert done.stdout == ""
    assert "geheim" not in done.stderr


def test_what_runs_on_several_nodes_did_to_each_other(run_cli: InProcess, filled: str) -> None:
    assert "No run on several nodes" in run_cli("history", "--contention").stdout
    with History(filled) as history:
        history.record_contention(
            ContentionRow("id-1", "train", 4, 2, "tune", 1, 1, 1.834, measured_at=1_700_000_000.0)
        )
    [line] = [line for line in run_cli("history", "--contention").stdout.splitlines() if "tune" in line]
    for part in ("train", "4 GPUs on 2 nodes", "1 GPU on 1 node", "1.83×"):
        assert part in line
    [row] = json.loads(run_cli("history", "--contention", "--json").stdout)
    assert (row["run_id"], row["slowdown"]) == ("id-1", 1.834)
    assert json.loads(run_cli("history", "--contention", "--json", "--flow", "tune").stdout) == []
    assert run_cli("history", "--contention", "--csv", "-").exit_code == 2


def test_contention_of_no_history_creates_none(run_cli: InProcess, state: Path) -> None:
    assert run_cli("history", "--contention").exit_code == 0
    assert not state.exists()


def test_deadlines_and_how_many_promises_were_kept(run_cli: InProcess, state: Path) -> None:
    at = 1_700_000_000.0
    ends = {"in-time": ("completed", -60.0), "late": ("completed", 80.0), "broke": ("failed", -10.0)}
    with History(f"sqlite:///{state / 'history.db'}") as history:
        history.record(ROWS[0])
        for name, (outcome, after_s) in ends.items():
            row = HistoryRow(name, "train", outcome, ended_at=at + after_s, deadline_at=at, promised=0.9)  # type: ignore[arg-type]
            history.record(row)
        history.record(HistoryRow("effort", "train", "completed", ended_at=at - 5.0, deadline_at=at))
    done = run_cli("history", "--deadlines")
    assert done.exit_code == 0 and "1 of 2 promises kept (50 of 100)." in done.stdout
    assert "wise-crab" not in done.stdout and "-80 s" in done.stdout
    told = json.loads(run_cli("history", "--deadlines", "--json").stdout)
    assert {row["run_id"] for row in told} == {*ends, "effort"}
    assert run_cli("history", "--deadlines", "--csv", "-").exit_code == 2


SUMMED = [
    HistoryRow("s-1", "train", "completed", ended_at=1_700_000_000.0, owner="ana", device_kind="NVIDIA H100",
               device_s=7200.0, energy_j=3.6e6, energy_from="gpu", cost=5.0),
    HistoryRow("s-2", "train", "failed", ended_at=1_700_100_000.0, owner="ana", device_kind="T4", device_s=3600.0),
    HistoryRow("s-3", "tune", "completed", ended_at=1_700_200_000.0, device_kind="virtual", virtual=True,
               device_s=1800.0, energy_j=360_000.0, energy_from="cpu"),
]  # fmt: skip


@pytest.fixture
def summed(state: Path) -> None:
    with History(f"sqlite:///{state / 'history.db'}") as history:
        for row in SUMMED:
            history.record(row)


def test_sums_by_owner_say_what_is_not_in_them(run_cli: InProcess, summed: None) -> None:
    done = run_cli("history", "--by", "owner")
    ana, nobody = [line.split() for line in done.stdout.splitlines() if line.split()[:1] in (["ana"], ["–"])]
    assert ana == ["ana", "2", "3", "1", "5.00"] and nobody == ["–", "1", "0.5", "0.1", "–"]
    assert "The energy of 1 of 3 runs is not known, and not in the sums." in done.stdout
    assert "The cost of 2 of 3 runs is not known, and not in the sums." in done.stdout


@pytest.mark.parametrize(
    "by, since, names",
    [("program", "2023-11-01", ["train", "tune"]), ("kind", "2023-11-17", ["virtual"]), ("owner", "2099-01-01", [])],
)
def test_sums_by_others_since_a_day(run_cli: InProcess, summed: None, by: str, since: str, names: list[str]) -> None:
    done = run_cli("history", "--by", by, "--since", since, "--json")
    assert [one["name"] for one in json.loads(done.stdout)] == names
    people = run_cli("history", "--by", by, "--since", since)
    assert people.exit_code == 0 and ("No run of this kind has finished since" in people.stdout) == (not names)


@pytest.mark.parametrize("since", ["2026-02-30", "31.12.2026", "now", ""])
def test_a_date_that_there_is_not_is_refused_with_one_that_could_be(run_cli: InProcess, since: str) -> None:
    done = run_cli("history", "--since", since)
    assert done.exit_code == 2
    assert f"--since {since!r} is no date: give one such as 2026-11-01, or 2026-11-01T18:00." in done.stderr


def test_a_date_that_the_systems_clock_does_not_know_is_no_traceback(cli: Cli) -> None:
    done = cli("history", "--since", "0001-01-01", TZ="Asia/Tokyo")
    assert done.returncode == 2 and "--since 0001-01-01" in done.stderr


@pytest.mark.parametrize("wrong", ["--by month", "--by owner --limit 3", "--by owner --csv -"])
def test_what_cannot_be_summed_is_refused(run_cli: InProcess, wrong: str) -> None:
    assert run_cli("history", *wrong.split()).exit_code == 2
