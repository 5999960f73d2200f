"""What a machine is told of its end, from a real file and a real server."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest
from pydantic import ValidationError

from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.nodes.notice import NoticeError, NoticeWatch, notice_in

AT = datetime(2026, 3, 1, 18, 0, tzinfo=timezone.utc).timestamp()
LOGGER = logging.getLogger("tests.notice")


@pytest.mark.parametrize(
    "told, at",
    {
        "": None,
        "FALSE\n": None,
        "[]": None,
        '{"Events": []}': None,
        "true": 1030.0,
        " 12.5 ": 1012.5,
        "11.251234567890123": 1011.251234567890123,  # as programs write the number that they have
        "2026-03-01T18:00:00Z": AT,
        "2026-03-01T19:00:00+01:00": AT,
        "Sun, 01 Mar 2026 18:00:00 GMT": AT,
        '{"action": "terminate", "time": "2026-03-01T18:00:00Z"}': AT,
        '{"Events": [{"EventType": "Preempt", "NotBefore": "Sun, 01 Mar 2026 18:00:00 GMT"}]}': AT,
        '{"time": 17, "Events": [{"NotBefore": ""}, {"NotBefore": "Sun, 01 Mar 2026 18:00:00 GMT"}]}': AT,
    }.items(),
)
def test_what_clouds_say(told: str, at: float | None) -> None:
    assert notice_in(told, now=1000.0, notice_s=30.0) == at


@pytest.mark.parametrize(
    "told",
    [
        "<html>",
        "{",
        "tomorrow",
        '{"time": "soon"}',
        '{"time": 17}',
        '{"Events": [{"EventStatus": "Started", "NotBefore": ""}]}',  # Azure's, once it has begun
        "[" * 100_000,
        '{"x": ' + "9" * 5000 + "}",
        "Mon, 01 Jan 99999999999999999999 00:00:00",
        "9999-12-31T23:59:59-12:00",
    ],
    ids=lambda told: told[:20],
)
def test_what_is_no_notice(told: str) -> None:
    with pytest.raises(NoticeError):
        notice_in(told, now=1000.0, notice_s=30.0)


@pytest.fixture
def cloud() -> Iterator[tuple[str, dict[str, str]]]:
    """An address, and what is said there; nothing: 404."""
    says: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told = says.get("told")
            self.send_response(200 if told is not None else 404)
            self.end_headers()
            self.wfile.write((told or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", says
    server.shutdown()
    server.server_close()


async def test_all_nodes_leave_at_the_earliest_announced_date_and_stay_if_it_is_taken_back(
    cloud: tuple[str, dict[str, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, says = cloud
    file = tmp_path / "notice"
    fleet = Fleet([Node("here", (Device("virtual-0", "virtual", 1 << 30, virtual=True),), ())])
    watch = NoticeWatch(GpuSettings(notice_file=file, notice_url=url), fleet, LOGGER)
    assert watch.is_needed and not NoticeWatch(GpuSettings(), fleet, LOGGER).is_needed
    async with httpx.AsyncClient() as client:
        await watch.look(client)
        assert fleet.nodes[0].ends_at is None
        file.write_text("2031-01-01T00:00Z")
        await watch.look(client)
        first = fleet.nodes[0].ends_at
        assert first is not None and str(file) in fleet.nodes[0].ends_why
        says["told"] = '{"time": "2030-01-01T00:00:00Z"}'
        await watch.look(client)
        ends = fleet.nodes[0].ends_at
        assert ends is not None and ends < first and url in fleet.nodes[0].ends_why
        assert fleet.nodes == fleet.nodes, "it is the same each time it is looked at"
        says["told"] = "<html>"
        await watch.look(client)
        assert fleet.nodes[0].ends_at == ends and "is no notice" in caplog.text
        del says["told"]
        file.unlink()
        await watch.look(client)
        assert fleet.nodes[0].ends_at is None


async def test_a_date_that_is_put_off_is_heard_and_seconds_count_from_when_they_were_said(tmp_path: Path) -> None:
    file, fleet = tmp_path / "notice", Fleet([Node("here", (), ())])
    watch, seen = NoticeWatch(GpuSettings(notice_file=file), fleet, LOGGER), list[float]()
    async with httpx.AsyncClient() as client:
        for told in ("2031-01-01T00:00Z", "2032-01-01T00:00Z", "TRUE", "TRUE", "3600", "3600"):
            file.write_text(told)
            await watch.look(client)
            seen.append(fleet.nodes[0].ends_at or 0.0)
    assert seen[0] < seen[1] and seen[2] == seen[3] < seen[4] == seen[5]


async def test_seconds_in_a_file_count_from_its_last_change_and_not_anew_for_a_worker_that_is_started_anew(
    tmp_path: Path,
) -> None:
    file, ends = tmp_path / "notice", set[float]()
    (tmp_path / "prepared").write_text("120")
    os.utime(tmp_path / "prepared", (0.0, 0.0))  # what counts is when it is put there, not when it was written
    (tmp_path / "prepared").rename(file)
    for _ in range(2):
        fleet = Fleet([Node("here", (), ())])
        async with httpx.AsyncClient() as client:
            await NoticeWatch(GpuSettings(notice_file=file), fleet, LOGGER).look(client)
        ends.add(fleet.leaving[""][0])
    assert ends == {file.stat().st_ctime + 120.0}


@pytest.mark.parametrize("date", ["2031-01-01T00:00", "2031-01-01", "tomorrow"])
def test_a_date_to_leave_by_without_its_time_zone_is_refused(date: str) -> None:
    """It was taken for one of the worker's own zone, which need not be that of who had set it."""
    with pytest.raises(ValidationError, match=r"no date with its time zone: give one, such as 2026-03-01T18:00\+01:00"):
        GpuSettings(leave_by=date)  # type: ignore[arg-type]


async def test_a_worker_that_is_to_leave_by_a_date(tmp_path: Path) -> None:
    fleet = Fleet([Node("here", (), ())])
    settings = GpuSettings(leave_by="2031-01-01T00:00:00+00:00")  # type: ignore[arg-type]
    async with httpx.AsyncClient() as client:
        await NoticeWatch(settings, fleet, LOGGER).look(client)
    assert fleet.nodes[0].ends_at is not None


async def test_what_cannot_be_read_hides_nothing_that_is_known_from_elsewhere(
    cloud: tuple[str, dict[str, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The address of a machine that is being shut down may be the first thing that is gone."""
    url, says = cloud
    file = tmp_path / "notice"
    fleet = Fleet([Node("here", (), ())])
    settings = GpuSettings(notice_file=file, notice_url=url, leave_by="2032-01-01T00:00+00:00")  # type: ignore[arg-type]
    watch, says["told"] = NoticeWatch(settings, fleet, LOGGER), "<html>"
    async with httpx.AsyncClient() as client:
        await watch.look(client)
        assert fleet.nodes[0].ends_why == "the worker is to leave by then" and "is no notice" in caplog.text
        file.write_text("2031-01-01T00:00Z")
        await watch.look(client)
        assert str(file) in fleet.nodes[0].ends_why
        file.write_text("soon")
        await watch.look(client)
        assert str(file) in fleet.nodes[0].ends_why, "what cannot be read is not taken back"
        del says["told"]
        file.unlink()
        await watch.look(client)
        assert fleet.nodes[0].ends_why == "the worker is to leave by then"


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:1/", "{endless}"])
async def test_an_address_that_gives_no_answer_is_named_and_hides_no_file(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_gpu.worker.nodes.notice._ANSWERS_IN_S", 0.2)

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    url = url.format(endless=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    file, fleet = tmp_path / "notice", Fleet([Node("here", (), ())])
    file.write_text("2031-01-01T00:00Z")
    async with server, httpx.AsyncClient() as client:
        watch = NoticeWatch(GpuSettings(notice_file=file, notice_url=url), fleet, LOGGER)
        await asyncio.wait_for(watch.look(client), 30.0)  # it never ended
    assert str(file) in fleet.nodes[0].ends_why
    assert f"cannot be read: {url} " in caplog.text
