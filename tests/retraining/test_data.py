"""Data that arrive as files: which count, also while others are being written or removed."""

from __future__ import annotations

import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_gpu.retraining import DataFiles, announce, data
from prefect_gpu.retraining.places import Place
from prefect_gpu.training.checkpoints.manifest import FileFacts, facts_of
from tests.radosgw import BUCKET


def test_a_file_that_is_renamed_meanwhile_spoils_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever adds one writes it under another name first: a hidden one, or one that the pattern leaves out."""
    files = DataFiles(tmp_path, "*.csv")
    files.add("a.csv", b"one")
    first = files.snapshot()
    (tmp_path / "b.csv.part").write_text("two")
    (tmp_path / ".c.csv").write_text("three")

    def read(path: Path) -> FileFacts:
        assert path.name == "a.csv", "what does not count is not read, either"
        return facts_of(path)

    monkeypatch.setattr(data, "facts_of", read)
    assert files.snapshot() == first


def test_what_is_added_counts_when_it_is_whole(tmp_path: Path) -> None:
    """With the pattern that is there by default."""
    (tmp_path / ".a.csv.tmp").write_text("on")
    assert DataFiles(tmp_path).snapshot().names == ()
    assert DataFiles(tmp_path, ".*").snapshot().names == (".a.csv.tmp",)
    assert DataFiles(tmp_path / "to come").snapshot().names == ()
    with pytest.raises(NotADirectoryError, match="tmp"):
        DataFiles(tmp_path / ".a.csv.tmp").snapshot()


def test_a_file_that_is_removed_meanwhile_was_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = DataFiles(tmp_path)
    files.add("a.csv", b"one")
    first = files.snapshot()
    files.add("b.csv", b"two")

    def read(path: Path) -> FileFacts:
        if path.name == "b.csv":
            path.unlink()  # by its owner, at this moment
        return facts_of(path)

    monkeypatch.setattr(data, "facts_of", read)
    assert files.snapshot() == first


def test_the_object_that_a_console_makes_for_a_folder_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[Any] = [{"Contents": [{"Key": "digits/", "ETag": "0"}, {"Key": "digits/a.csv", "ETag": "1"}]}]
    lists = SimpleNamespace(paginate=lambda **asked: pages)
    monkeypatch.setattr(Place, "client", lambda self: SimpleNamespace(get_paginator=lambda name: lists))
    assert DataFiles("s3://bucket/digits").snapshot().names == ("a.csv",)


@pytest.mark.needs("s3")
def test_what_cannot_be_read_or_written_in_s3_is_said(bucket: str) -> None:
    with pytest.raises(FileNotFoundError, match="has no such file"):
        DataFiles(bucket).read("a.csv")
    files = DataFiles(bucket.replace(BUCKET, "nobodys"))
    for asks in (lambda: files.read("a.csv"), lambda: files.add("a.csv", b"one"), files.snapshot):
        with pytest.raises(ConnectionError, match=r"The data at .* are out of reach.*Make the bucket first"):
            asks()


@pytest.mark.parametrize("dataset", ["", " ", None])
def test_data_are_announced_by_a_name(tmp_path: Path, dataset: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"dataset={dataset!r} is no name")):
        announce(dataset, DataFiles(tmp_path))
    with pytest.raises(TypeError, match=re.escape("files='data/digits' is not allowed: give DataFiles('data/digits')")):
        announce("digits", "data/digits")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url, named",
    [
        (None, "PREFECT_API_URL is not set"),
        ("http://127.0.0.1:1/api", "no Prefect server answers at http://127.0.0.1:1/api"),
        ("http://127.0.0.1:{port}/api", "/api answers 401. Give PREFECT_API_KEY, or PREFECT_API_AUTH_STRING"),
    ],
)
def test_where_nobody_hears_of_data_their_announcement_fails(tmp_path: Path, url: str | None, named: str) -> None:
    """Prefect sends events in the background: the call returned as if all were well."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = {} if url is None else {PREFECT_API_URL: url.format(port=server.server_port)}
        with temporary_settings(address, restore_defaults={PREFECT_API_URL}):
            with pytest.raises(ConnectionError, match=f"Nobody hears of the data: .*{re.escape(named)}"):
                announce("digits", DataFiles(tmp_path))
        server.shutdown()
