"""What outlives the worker."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.launch.records import RecordStore, RunRecord
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request


def a_record(run_id: str = "a", pool: str = "pool") -> RunRecord:
    return RunRecord(
        run_id,
        "sly fox",
        pool,
        "queue",
        "secret",
        Request(2, 4 << 30, 3, False, "cv", features=("lr", "model.width")),
        Placement("here", ("GPU-1", "GPU-2"), (0, 1, 2), 4 << 30, True),
        attempt=2,
        session="process",
        known={"parameters": {"lr": 0.1}},
        times={"granted": 1.5},
    )


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    folder = store.create(a_record())
    assert list(RecordStore(tmp_path, "pool")) == [(folder, a_record())]
    store.write(folder, dataclasses.replace(a_record(), cancelled=True, warm=True))
    [(_, record)] = store
    assert record.cancelled and record.warm


def test_a_record_of_an_earlier_version_names_no_features(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    file = store.create(a_record()) / "record.json"
    data = json.loads(file.read_text())
    del data["request"]["features"]
    file.write_text(json.dumps(data))
    [(_, record)] = store
    assert record.request == dataclasses.replace(a_record().request, features=())


def test_the_placement_of_a_gang_comes_back_with_all_its_parts(tmp_path: Path) -> None:
    part = Placement("there", ("GPU-3",), (4,))
    record = dataclasses.replace(a_record(), placement=Placement("here", ("GPU-1",), (0,), others=(part, part)))
    store = RecordStore(tmp_path, "pool")
    store.create(record)
    assert [read for _, read in store] == [record]


def test_records_come_oldest_first_and_only_those_of_the_pool(tmp_path: Path) -> None:
    store, others = RecordStore(tmp_path, "pool"), RecordStore(tmp_path, "other")
    for run_id in ("z", "b", "z", "a"):
        store.create(a_record(run_id))
    others.create(a_record("theirs", "other"))
    assert [record.run_id for _, record in store] == ["z", "b", "z", "a"]
    assert [record.run_id for _, record in others] == ["theirs"]


def test_nobody_else_may_read_the_token(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    folder = store.create(a_record())
    store.write(folder, a_record())
    assert stat.S_IMODE((folder / "record.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_parameters_that_are_no_json_are_kept_as_text(tmp_path: Path) -> None:
    record = a_record()
    record.known["parameters"] = {"path": Path("/data")}
    store = RecordStore(tmp_path, "pool")
    store.create(record)
    [(_, read)] = store
    assert read.known["parameters"] == {"path": "/data"}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"request": 7}', '{"run_id": "a"}', "\ud800"])
def test_a_folder_that_was_being_made_is_skipped(tmp_path: Path, text: str | None) -> None:
    store = RecordStore(tmp_path, "pool")
    whole = store.create(a_record())
    half = tmp_path / "runs" / "b-1"
    half.mkdir()
    if text is not None:
        (half / "record.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    (half / "record.json.tmp").write_text(json.dumps({"run_id": "b"}))
    (tmp_path / "runs" / "a stray file").touch()
    assert [folder for folder, _ in store] == [whole]


def test_a_settled_launch_leaves_nothing(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    folder = store.create(a_record())
    (folder / "output").write_text("words")
    store.remove(folder)
    store.remove(folder)
    assert list(store) == [] and not folder.exists()


def test_a_launch_appears_and_disappears_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed meanwhile leaves nothing among the launches, and the next one removes the rest."""

    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    store = RecordStore(tmp_path, "pool")
    folder = store.create(a_record())
    for _ in range(2):
        monkeypatch.setattr(shutil, "rmtree", killed)  # as if it were killed at the first file
        with pytest.raises(Killed):
            store.remove(folder)
        monkeypatch.setattr(store, "write", killed)
        with pytest.raises(Killed):
            store.create(a_record("b"))
        monkeypatch.undo()
        assert list((tmp_path / "runs").iterdir()) == []
        folder = store.create(a_record())
    RecordStore(tmp_path, "other").clean_up()
    assert len(list((tmp_path / "unfinished" / "pool").iterdir())) == 4
    store.clean_up()
    assert not (tmp_path / "unfinished" / "pool").exists() and folder.exists()


def test_a_supervisor_that_comes_too_late_cannot_start_a_launch_that_is_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launch was revoked: were its claim removed before its folder, the supervisor could make its own."""
    store = RecordStore(tmp_path, "pool")
    folder = store.create(a_record())
    assert supervisor.claim(str(folder), {"revoked": True})
    started = []

    def remove_one_by_one(removing: Path, ignore_errors: bool = False) -> None:
        for file in list(removing.iterdir()):
            file.unlink()
            with suppress(FileNotFoundError):
                started.append(supervisor.claim(str(folder), {"pid": 1}))

    monkeypatch.setattr(shutil, "rmtree", remove_one_by_one)
    store.remove(folder)
    assert not any(started)


def test_a_state_folder_that_is_new_holds_no_records(tmp_path: Path) -> None:
    assert list(RecordStore(tmp_path / "new", "pool")) == []
