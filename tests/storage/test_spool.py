"""Rows wait on the disk until the history has them; each gets there once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from prefect_gpu.storage.history import History, HistoryError
from prefect_gpu.storage.row import Part
from prefect_gpu.storage.spool import Spool
from tests.storage.test_history import FULL, contended, row, stayed

GANG = row("gang", parts=(Part(node="n1", devices=("a", "b"), role="worker"),), devices=("a", "b"), granted_at=5.5)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_come_out_of_the_spool_as_they_went_in_after_a_restart_too(history_url: str, tmp_path: Path) -> None:
    for one in (FULL, contended(), GANG, stayed()):
        Spool(tmp_path / "spool").put(one)
    spool = Spool(tmp_path / "spool")
    with History(history_url) as history:
        assert (len(spool), spool.write_to(history), len(spool)) == (4, 4, 0)
        assert sorted(history.rows(), key=lambda found: found.ended_at) == [GANG, FULL]
        assert history.contention() == [contended()]
        assert history.stays("gpus", 0.0) == [stayed()]
    assert names(tmp_path / "spool") == []


def test_who_is_killed_before_the_file_is_gone_writes_no_row_twice(history_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder)
    spool.put(GANG)
    [path] = spool.waiting()
    kept = path.read_bytes()
    with History(history_url) as history:
        spool.write_to(history)
        path.write_bytes(kept)  # as it is if the process ends between the two
        assert len(spool) == 1
        Spool(folder).write_to(history)
        assert history.rows() == [GANG]
    assert names(folder) == []


def test_processes_that_empty_one_spool_at_once_lose_and_double_nothing(history_url: str, tmp_path: Path) -> None:
    """Two rows of each run have the same number: each must get one of its own, whoever writes it."""
    spool = Spool(tmp_path)
    for number in range(40):
        for granted_at in (1.0, 2.0):
            spool.put(row(f"run-{number}", granted_at=granted_at))
    script = """
import sys
from pathlib import Path
from prefect_gpu.storage.history import History
from prefect_gpu.storage.spool import Spool
with History(sys.argv[1]) as history:
    Spool(Path(sys.argv[2])).write_to(history)
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, history_url, str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate()
        assert worker.returncode == 0, errors
    with History(history_url) as history:
        found = sorted((one.run_id, one.granted_at) for one in history.rows())
    assert found == sorted((f"run-{number}", granted_at) for number in range(40) for granted_at in (1.0, 2.0))
    assert len(spool) == 0


def test_what_a_history_that_is_down_has_not_taken_waits_on(tmp_path: Path) -> None:
    url, spool = f"sqlite:///{tmp_path / 'history.db'}", Spool(tmp_path / "spool")
    with History(url) as history:
        for number in range(3):
            spool.put(row(f"run-{number}"))
        with history._writer.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE prefect_gpu_runs RENAME TO away")
        with pytest.raises(HistoryError):
            spool.write_to(history)
        assert len(spool) == 3
        with history._writer.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE away RENAME TO prefect_gpu_runs")
        assert spool.write_to(history) == 3
        assert history.count() == 3


def test_a_row_that_is_refused_and_a_torn_file_are_set_aside_and_keep_nobody_waiting(
    history_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder)
    with History(history_url) as history:
        with history._writer.begin() as connection:
            connection.exec_driver_sql(
                "CREATE UNIQUE INDEX prefect_gpu_test ON prefect_gpu_runs (flow_name)"
            )  # somebody's own rule
        for name, flow in (("run-1", "a"), ("run-2", "a"), ("run-3", "b")):
            spool.put(row(name, flow_name=flow))
        (folder / "0.json").write_text('{"kind": "ru')
        (folder / "1.json").touch()
        assert spool.write_to(history) == 2
        assert sorted(one.run_id for one in history.rows()) == ["run-1", "run-3"]
        assert len(spool) == 0 and len(names(folder)) == 3 and all(one.endswith(".refused") for one in names(folder))
        assert "cannot be read" in caplog.text and "is refused" in caplog.text
        with history._writer.begin() as connection:
            connection.exec_driver_sql("DROP INDEX prefect_gpu_test")
        spool.take_up()
        assert spool.write_to(history) == 1
        assert history.count() == 3


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "7",
        '{"kind": "run", "parameters": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"kind": "run", "run_id": "a", "flow_name": {"name": "f"}, "outcome": "completed", "ended_at": 1.0}',
        '{"kind": "run", "run_id": "a", "flow_name": "f", "outcome": "completed", "ended_at": "noon"}',
        '{"kind": "run", "run_id": "a", "flow_name": "f", "outcome": "completed", "ended_at": 1.0, "granted_at": [1]}',
    ],
    ids=["nothing", "a number", "nested without end", "no text", "no number", "a list"],
)
def test_a_file_that_holds_something_else_than_a_row_keeps_nobody_waiting(
    history_url: str, tmp_path: Path, text: str
) -> None:
    """A newer version may keep a value of another kind under the same name."""
    folder = tmp_path / "spool"
    spool = Spool(folder)
    spool.put(row("run-1"))
    (folder / "0.json").write_text(text)
    with History(history_url) as history:
        assert spool.write_to(history) == 1
        assert [one.run_id for one in history.rows()] == ["run-1"]
    assert names(folder) == ["0.json.refused"]


def test_rows_that_a_newer_version_has_kept_are_written_with_what_is_known(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.put(GANG)
    [path] = spool.waiting()
    path.write_text(path.read_text().replace('{"kind"', '{"colour": "blue", "kind"'))
    with History("sqlite://") as history:
        spool.write_to(history)
        assert history.rows() == [GANG]


def test_without_room_on_the_disk_rows_wait_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "spool"
    blocked.write_text("in the way")
    spool = Spool(blocked)
    spool.put(GANG)
    assert len(spool) == 1 and "waits in memory" in caplog.text
    with History("sqlite://") as history:
        assert spool.write_to(history) == 1
        assert history.rows() == [GANG]
    spool.put(FULL)
    blocked.unlink()
    with History("sqlite://") as history:
        history._engine.dispose()
        with history._writer.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS prefect_gpu_runs")
        with pytest.raises(HistoryError):
            spool.write_to(history)
    assert len(Spool(blocked)) == 1, "there is room again: it outlives the process now"
