"""A worker that starts among records that it cannot read: after a power loss, or after a newer version."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.launch.records import FIRST, RECORD, RecordStore
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.training import protocol
from prefect_gpu.training.channel import client as run_side
from tests.runtime.launch.test_records import a_record
from tests.runtime.stand_ins import until
from tests.runtime.test_controller import Bench, read_json, running

TORN = [b"", b"{", b"null", b"{}", b'{"request": 7}', b"\xff\xfe", b"[" * 100_000]


def tear(folder: Path, content: bytes = b"") -> None:
    """Leave of a record what a power loss may."""
    for name in (RECORD, FIRST):
        (folder / name).write_bytes(content)


def change(folder: Path, **fields: Any) -> None:
    """Write a record as another version might have."""
    for name in (RECORD, FIRST):
        (folder / name).write_text(json.dumps({**read_json(str(folder / name)), **fields}))


@pytest.mark.parametrize("content", TORN, ids=range(len(TORN)))
async def test_a_torn_record_neither_stops_the_start_nor_loses_its_devices(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as bench:
        torn, whole = await bench.launch("torn"), await bench.launch("whole")
        tear(bench.controller.runs["torn"].folder, content)
    async with running(tmp_path, bench.driver.world) as second:
        assert set(second.places) == {"torn", "whole"} and second.places["torn"] == ("GPU-1",)
        assert "The record of run torn cannot be read" in caplog.text
        assert "Run torn goes on, and GPU-1 cannot be granted until it has ended" in caplog.text
        second.submit("next")
        await until(lambda: second.host.holds)
        assert "next" not in second.places
        torn.end()
        await until(lambda: "launched next" in second.host.said)
        assert "finalise torn" in second.host.said and second.places["next"] == ("GPU-1",)
        whole.end()


async def test_a_torn_record_of_a_launch_that_never_began_gives_its_run_back(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        tear(bench.controller.runs["a"].folder)
    async with running(tmp_path) as second:  # whose driver finds no process
        await until(lambda: "unlaunched a" in second.host.said)
        assert second.places == {} and second.folders == []


async def test_a_record_whose_newest_state_is_lost_is_what_it_was_at_its_launch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        (bench.controller.runs["a"].folder / RECORD).write_bytes(b"")
        token = bench.controller.runs["a"].record.token
    async with running(tmp_path, bench.driver.world) as second:
        assert second.places == {"a": ("GPU-1",)} and second.controller.runs["a"].record.token == token
        assert "is taken as it was at its launch" in caplog.text and not second.controller.runs["a"].damaged


async def test_a_record_is_on_the_disk_before_its_run_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    fsync = os.fsync

    def synced(fd: int) -> None:
        told.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    async with running(tmp_path) as bench:
        monkeypatch.setattr(os, "fsync", synced)
        bench.host.preparing = asyncio.Event()
        bench.submit("a")
        await until(lambda: "prepare a" in bench.host.said)
        assert told == [FIRST, bench.folders[0].name, "runs"]
        bench.host.preparing.set()


async def test_a_run_that_cannot_be_looked_for_has_its_place_and_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bench:
        handle, other = await bench.launch("a"), await bench.launch("b")
        token = bench.controller.runs["a"].record.token
    second = Bench(tmp_path, bench.driver.world)
    adopt, broken = second.driver.adopt, [True]

    async def failing(run_id: str, run_dir: Path) -> Any:
        if broken and run_id == "a":
            raise OSError("Input/output error")
        return await adopt(run_id, run_dir)

    monkeypatch.setattr(second.driver, "adopt", failing)
    await second.controller.start()
    assert set(second.places) == {"a", "b"} and second.controller.runs["b"].handle is other
    assert await say_hello(second.controller._channel.url, "a", token) is None, "else it would end itself"
    broken.clear()
    await until(lambda: second.controller.runs["a"].handle is not None)
    handle.end()
    await until(lambda: "finalise a" in second.host.said and "a" not in second.places)
    await second.controller.close()


async def say_hello(url: str, run: str, token: str) -> int | None:
    """The code that a run is turned away with; None if it is welcome."""
    hello = {"type": "hello", "protocol": 1, "run": run, "token": token, "session": "process"}
    async with connect(url) as connection:
        await connection.send(json.dumps(hello))
        try:
            await connection.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code
    return None


async def test_a_run_whose_token_is_lost_is_not_told_to_end_itself(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        token = bench.controller.runs["a"].record.token
        tear(bench.controller.runs["a"].folder)
    async with running(tmp_path, bench.driver.world) as second:
        code = await say_hello(second.controller._channel.url, "a", token)
        assert code == 1013 and code not in run_side.FATAL_CODES
        assert second.controller.runs["a"].damaged
        handle.end()
        await second.controller.wait_idle()
        assert await say_hello(second.controller._channel.url, "a", token) == protocol.CLOSE_OVER


async def test_of_a_record_in_another_shape_the_token_and_the_place_are_known_and_it_is_left_as_it_is(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        await bench.launch("b")
        folder, token = bench.controller.runs["b"].folder, bench.controller.runs["b"].record.token
        change(folder, request=[1, "GPU"], speeds="fast")
        written = (folder / RECORD).read_bytes()
    async with running(tmp_path, bench.driver.world) as second:
        assert second.places["b"] == ("virtual-0",)
        assert await say_hello(second.controller._channel.url, "b", token) is None
        await until(lambda: second.controller.runs["b"].record.session == "process")
        assert (folder / RECORD).read_bytes() == written, "the newer worker that comes back reads it"


async def test_a_gang_of_which_nothing_is_known_takes_all_that_is_free(tmp_path: Path) -> None:
    nodes = tuple(Node(name, (Device(f"GPU-{name}", "H200", 8 << 30),), (0, 1)) for name in ("n1", "n2", "n3"))
    async with running(tmp_path) as bench:
        await bench.launch("a")
        folder = bench.controller.runs["a"].folder
        tear(folder)
        (folder / f"{folder.name}.1").mkdir()
        bench.driver.world[folder / f"{folder.name}.1"] = bench.driver.world[folder]
    second = Bench(tmp_path, bench.driver.world)
    second.controller.fleet.change(nodes)
    await second.controller.start()
    assert second.places == {"a": ("GPU-n1",)}
    placement = second.controller.scheduler.state.jobs["a"].placement
    assert placement is not None and placement.all_devices == ("GPU-n1", "GPU-n2", "GPU-n3")
    await second.controller.close()


def test_what_nobody_of_us_has_made_is_no_record(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    theirs, stray = tmp_path / "runs" / "thesis-2", tmp_path / "runs" / "notes-1.txt"
    theirs.mkdir(parents=True)
    (theirs / "draft").touch()
    stray.touch()
    of_another_pool = store.create(dataclasses.replace(a_record("x"), pool="other"))
    change(of_another_pool, request=7)
    torn = store.create(a_record("y"))
    tear(torn)
    claimed = tmp_path / "runs" / "z-1"
    claimed.mkdir()
    assert supervisor.claim(str(claimed), {"pid": 1})
    assert list(store) == []
    assert [(folder, record.run_id) for folder, record in store.damaged()] == [(claimed, "z"), (torn, "y")]
