from __future__ import annotations

import contextlib
import math
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, select, text

from prefect_gpu.storage import schema
from prefect_gpu.storage.engine import parse_url
from prefect_gpu.storage.history import History, HistoryError, HistoryRow
from prefect_gpu.storage.row import ContentionRow, Part, StayRow
from prefect_gpu.storage.schema import runs_table


def row(run_id: str = "run-1", **values: Any) -> HistoryRow:
    known: dict[str, Any] = {"flow_name": "train", "outcome": "completed", "ended_at": 1000.0}
    return HistoryRow(run_id=run_id, **(known | values))


FULL = HistoryRow(
    run_id="run-1", attempt=2, flow_name="train", run_name="wise-crab", deployment="nightly", pool="gpus",
    worker="box", category="cv", parameters={"lr": 0.1, "layers": [64, 32], "opt": {"name": "adam"}, "öl": "ß"},
    features={"batch_size": 32, "gpus": 1}, requested_gpus=1.0, requested_gpu_memory_bytes=200 * 2**30,
    requested_cpus=4.0, node="box-1", devices=("GPU-1", "GPU-2"), device_kind="NVIDIA H100", virtual=False,
    submitted_at=1000.5, granted_at=1010.25, started_at=1011.0, ended_at=2000.125, waited_s=9.75, prepared_s=5.0,
    trained_s=970.0, saved_s=14.0, steps_done=3_000_000_000, final_loss=0.25, best_loss=0.125,
    device_util_mean=0.75, device_util_peak=1.0, device_memory_peak_bytes=70 * 2**30, cpu_mean=2.5,
    rss_peak_bytes=3 * 2**30, net_mean_bytes_per_s=1e6, outcome="failed", exit_code=-9, message="killed\nby hand",
    warm_start=True, pace={"1": 0.5, "2": 1.0, "75": 37.5},
)  # fmt: skip


def test_a_row_comes_back_as_it_was(history_url: str) -> None:
    with History(history_url) as history:
        assert history.record(FULL)
        assert history.record(row("run-2", ended_at=1.0))
        assert history.rows() == [FULL, row("run-2", ended_at=1.0)]


def test_rows_stay_when_the_database_is_opened_again(history_url: str) -> None:
    with History(history_url) as history:
        history.record(FULL)
    with History(history_url) as history:
        assert history.rows() == [FULL]
        assert history.count() == 1


def test_recording_twice_keeps_the_first(history_url: str) -> None:
    with History(history_url) as history:
        assert history.record(row(message="first")) is True
        assert history.record(row(message="second", outcome="failed")) is False
        assert [found.message for found in history.rows()] == ["first"]


def test_each_attempt_is_a_row(history_url: str) -> None:
    with History(history_url) as history:
        assert history.record(row(attempt=1, outcome="crashed"))
        assert history.record(row(attempt=2))
        assert [found.attempt for found in history.rows()] == [2, 1]


def test_a_run_that_is_run_again_before_prefect_has_counted_it_gets_a_row_of_its_own(history_url: str) -> None:
    """One that crashed before it was RUNNING, say: Prefect's count of its tries is as it was."""
    with History(history_url) as history:
        assert history.record(row(outcome="crashed", granted_at=100.125))
        assert history.record(row(outcome="completed", granted_at=200.5, ended_at=2000.0))
        assert not history.record(row(outcome="completed", granted_at=200.5)), (
            "the worker was killed and finalises again"
        )
        assert not history.record(row(outcome="crashed", granted_at=100.125))
        assert [(found.attempt, found.outcome) for found in history.rows()] == [(2, "completed"), (1, "crashed")]


def test_rows_newest_first_and_chosen(history_url: str) -> None:
    with History(history_url) as history:
        for number, (flow, outcome) in enumerate(
            [("a", "completed"), ("b", "failed"), ("a", "failed"), ("a", "completed")]
        ):
            history.record(row(f"run-{number}", flow_name=flow, outcome=outcome, ended_at=float(number)))

        def chosen(**wanted: Any) -> list[str]:
            return [found.run_id[-1] for found in history.rows(**wanted)]

        assert chosen() == ["3", "2", "1", "0"]
        assert chosen(limit=2) == ["3", "2"]
        assert chosen(limit=0) == []
        assert chosen(flow_name="a") == ["3", "2", "0"]
        assert chosen(outcome="failed") == ["2", "1"]
        assert chosen(since=2.0) == ["3", "2"]
        assert chosen(flow_name="a", outcome="completed", since=1.0, limit=5) == ["3"]
        assert chosen(flow_name="nothing") == []


def test_odd_values_do_not_cost_a_row(history_url: str) -> None:
    odd = {
        "nan": math.nan,
        "inf": math.inf,
        "path": Path("/x"),
        "nul": "a\x00b",
        "half": "\ud800x",
        3: {"b", "a"},
        "big": 2**70,
    }
    with History(history_url) as history:
        assert history.record(row(parameters=odd, final_loss=math.nan, best_loss=math.inf, message="a\x00b\udc80"))
        [found] = history.rows()
    assert found.parameters == {
        "nan": None, "inf": None, "path": "/x", "nul": "ab", "half": "x", "3": ["a", "b"], "big": str(2**70),
    }  # fmt: skip
    assert (found.final_loss, found.best_loss, found.message) == (None, None, "ab")


@pytest.mark.parametrize(("values", "words"), [({"outcome": "done"}, "completed, failed"), ({"run_id": ""}, "run_id")])
def test_a_senseless_row_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        row(**values)


def test_two_workers_open_and_write_at_once(history_url: str) -> None:
    script = """
import sys
from prefect_gpu.storage.history import History, HistoryRow
with History(sys.argv[1]) as history:
    for number in range(50):
        history.record(HistoryRow(f"own-{sys.argv[2]}-{number}", "train", "completed", ended_at=1.0))
        history.record(HistoryRow(f"both-{number}", "train", "completed", ended_at=1.0))
"""
    workers = [
        subprocess.Popen([sys.executable, "-c", script, history_url, name], stderr=subprocess.PIPE, text=True)
        for name in ("a", "b", "c")
    ]
    for worker in workers:
        _, errors = worker.communicate()
        assert worker.returncode == 0, errors
    with History(history_url) as history:
        assert history.count() == 3 * 50 + 50


def test_a_new_history_waits_for_whoever_writes_its_file(tmp_path: Path) -> None:
    """Another worker that opens it at the same time does: it makes the tables."""
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other, ThreadPoolExecutor(1) as thread:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE other (number)")
        opened = thread.submit(History, f"sqlite:///{path}")
        wait([opened], timeout=0.3)  # what gives up does so at once
        other.execute("COMMIT")
        with opened.result() as history:
            assert history.record(row())
    with contextlib.closing(sqlite3.connect(path)) as later:
        assert later.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_threads_share_a_history(history_url: str) -> None:
    with History(history_url) as history:
        threads = [
            threading.Thread(target=lambda n=number: [history.record(row(f"{n}-{i}")) for i in range(20)])
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert history.count() == 80


def test_a_newer_database_is_refused_and_left_alone(history_url: str) -> None:
    History(history_url).close()
    engine = create_engine(parse_url(history_url))
    with engine.begin() as connection:
        connection.execute(schema.version_table.update().values(version=99))
    with pytest.raises(HistoryError, match=r"schema version 99.*pip install --upgrade prefect-gpu"):
        History(history_url)
    with engine.connect() as connection:
        assert connection.execute(select(schema.version_table.c.version)).scalar() == 99
    engine.dispose()


def test_every_later_column_can_be_added_to_a_table_with_rows() -> None:
    assert all(column.nullable or column.server_default is not None for column in runs_table.columns
               if column.name not in ("run_id", "attempt", "flow_name", "outcome", "ended_at"))  # fmt: skip


def test_a_gang_is_one_row_with_the_places_of_all_its_instances(history_url: str) -> None:
    parts = (
        Part(node="n1", devices=("n1/virtual-0", "n1/virtual-1"), role="worker"),
        Part(node="n2", devices=(), role="server"),
    )
    kept = row(node="n1", devices=parts[0]["devices"], parts=parts)
    with History(history_url) as history:
        history.record(kept)
        [found] = history.rows()
    assert found == kept
    assert found.places == (("n1", ("n1/virtual-0", "n1/virtual-1")), ("n2", ()))


@pytest.mark.parametrize("damage", ["parts = '[{}]'", "parameters = '{\"lr\": '", "outcome = 'vanished'"])
def test_a_row_that_cannot_be_read_is_left_out_with_one_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    with History(url) as history:
        for name in ("run-1", "run-2", "run-3"):
            history.record(row(name))
        with history._writer.begin() as connection:
            connection.execute(text(f"UPDATE prefect_gpu_runs SET {damage} WHERE run_id = 'run-2'"))
        for _ in range(2):
            assert {found.run_id for found in history.rows()} == {"run-1", "run-3"}
    assert [record.args[0] for record in caplog.records if "cannot be read" in record.message] == ["run-2"]


def test_sqlite_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'history.db'}"
    with History(url) as history, History(url) as other:
        history.record(row())
        with history._writer.begin() as connection:
            connection.execute(runs_table.insert().values(row("run-2").as_columns()))
            assert other.count() == 1
        assert other.count() == 2


def test_what_is_learned_from_is_the_newest_of_each_flow(history_url: str) -> None:
    with History(history_url) as history:
        for number in range(6):
            history.record(row(f"a-{number}", flow_name="a", ended_at=100.0 + number))
            history.record(row(f"b-{number}", flow_name="b", ended_at=200.0 + number))
        newest = history.newest_of_each_flow(2)
        assert [found.run_id for found in newest] == ["b-5", "b-4", "a-5", "a-4"]
        assert [found.run_id for found in history.newest_of_each_flow(2, limit=3)] == ["b-5", "b-4", "a-5"]


def contended(run_id: str = "run-1", slowdown: float = 2.0, measured_at: float = 10.0, **more: Any) -> ContentionRow:
    values: dict[str, Any] = {"program": "bert", "gpus": 4, "nodes": 2, "beside": "dlrm", "beside_gpus": 8}
    values |= {"beside_nodes": 4, "slowdown": slowdown, "measured_at": measured_at}
    return ContentionRow(run_id, **(values | more))


def test_what_runs_on_several_nodes_did_to_each_other_is_kept_once_a_pair_the_newest(history_url: str) -> None:
    with History(history_url) as history:
        for one in (contended(), contended(slowdown=2.5, measured_at=20.0), contended(slowdown=9.0, measured_at=5.0)):
            history.record_contention(one)
        history.record_contention(contended("run-2", beside="bert", measured_at=30.0, program="other"))
    with History(history_url) as history:  # another worker
        assert [(one.run_id, one.slowdown) for one in history.contention()] == [("run-2", 2.0), ("run-1", 2.5)]
        assert history.contention(flow_name="bert") == [contended(slowdown=2.5, measured_at=20.0)]
        assert len(history.contention(limit=1)) == 1
        assert history.count() == 0, "these are no finished runs"


def stayed(launch: str = "one", **more: Any) -> StayRow:
    values: dict[str, Any] = {"pool": "gpus", "owner": "ada", "devices": 2.0, "submitted_at": 1.0, "granted_at": 5.0}
    return StayRow("run-1", launch, **({**values, "ended_at": 9.0} | more))


def test_what_each_launch_held_is_kept_once_and_found_by_its_pool_and_its_end(history_url: str) -> None:
    with History(history_url) as history:
        for one in (stayed(), stayed(devices=9.0), stayed("two", ended_at=20.0), stayed("three", pool="other")):
            history.record_stay(one)
        assert history.stays("gpus", 0.0) == [stayed(), stayed("two", ended_at=20.0)]
        assert history.stays("gpus", 9.5) == [stayed("two", ended_at=20.0)]
        assert history.count() == 0, "these are no finished runs"


def test_a_slowdown_that_is_none_is_refused_and_left_out(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"slowdown=0.0 must be a number above 0"):
        contended(slowdown=0.0)
    with History(f"sqlite:///{tmp_path / 'history.db'}") as history:
        history.record_contention(contended())
        history.record_contention(contended("run-2"))
        with history._writer.begin() as connection:
            connection.execute(text("UPDATE prefect_gpu_contention SET slowdown = 'much' WHERE run_id = 'run-1'"))
        assert [one.run_id for one in history.contention()] == ["run-2"]
