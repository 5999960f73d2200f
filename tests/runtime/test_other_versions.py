"""A worker is upgraded, or rolled back, while runs train: what one version leaves behind, the next one understands.

``version1/`` was recorded with the last code before there were versions; see its README. With that code itself, where
the clone has it: :mod:`tests.live.test_other_versions`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from prefect_gpu.runtime.channel import ChannelServer
from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.runtime.drivers.docker.handle import Made, read_made, read_report
from prefect_gpu.runtime.drivers.launched import Ended, Started
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch import records
from prefect_gpu.runtime.launch.records import FIRST, RECORD, RecordStore
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Request
from prefect_gpu.training.channel.client import ChannelClient
from tests.doors.nonsense import door
from tests.runtime.launch.test_records import a_record
from tests.runtime.stand_ins import until
from tests.runtime.test_controller import running

VERSION_1 = Path(__file__).with_name("version1")
LOGGER = logging.getLogger("test.versions")


def of_version_1(name: str) -> Any:
    return json.loads((VERSION_1 / name).read_text())


def names_in(value: Any) -> Any:
    """The names of all fields, as far as a shape is fixed; those of what is learned at run time are not."""
    if not isinstance(value, dict):
        return [names_in(item) for item in value[:1]] if isinstance(value, list) else None
    free = ("known", "times", "progress", "speeds")
    return {name: None if name in free else names_in(item) for name, item in value.items()}


# -- records ------------------------------------------------------------------------------------------------------


def test_a_record_of_version_1_is_read(tmp_path: Path) -> None:
    for number, name in enumerate(("record-full.json", "record-plain.json")):
        folder = tmp_path / "runs" / f"{'ab'[number]}-{number}"
        folder.mkdir(parents=True)
        shutil.copy(VERSION_1 / name, folder / RECORD)
    (_, full), (_, plain) = RecordStore(tmp_path, "pool")
    assert full.token == "secret" and full.session == "process" and full.leaving == "it makes room"
    assert full.request.features == ("lr", "model.width") and full.request.workers == 2
    assert full.placement.others == (Placement("there", ("GPU-3",), (4,), 4 << 30, True),)
    assert full.times == {"submitted": 0.5, "granted": 1.5, "preparing": 2.5} and full.progress["step"] == 7
    assert (plain.run_id, plain.request, plain.placement) == ("b", Request(), Placement("here", ("GPU-1",), (0,)))


@pytest.mark.parametrize("name", ["record-full.json", "record-plain.json"])
def test_version_1_reads_our_records(tmp_path: Path, name: str) -> None:
    """It took a record with one field that it did not know, at any depth, for none, and granted its devices again.

    Whoever adds a field to a run's record need do nothing: it is written below ``known``. Whoever adds one to a request
    or to a placement has to leave it out where it has its default, and to make version 1 no version before any more.
    """
    theirs = of_version_1(name)
    folder = tmp_path / "runs" / "a-1"
    folder.mkdir(parents=True)
    shutil.copy(VERSION_1 / name, folder / RECORD)
    store = RecordStore(tmp_path, "pool")
    [(_, record)] = store
    store.write(folder, record)
    ours = json.loads((folder / RECORD).read_text())
    assert names_in(ours) == names_in(theirs)
    assert ours["known"].pop("since_version_1") == {"version": records.VERSION, "least": 1}
    assert ours == theirs


def test_the_range_of_an_elastic_gang_is_kept_where_version_1_does_not_look(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, "pool")
    request = Request(max_workers=8, batch_sizes=(64, 1024), preemptible=True)
    folder = store.create(replace(a_record(), request=request, batch_size=256))
    written = json.loads((folder / RECORD).read_text())
    assert names_in(written["request"]) == names_in(of_version_1("record-plain.json")["request"])
    [(_, record)] = store
    assert (record.request, record.batch_size) == (request, 256)


@pytest.mark.parametrize("place", [(), ("request",), ("placement",), ("known", "since_version_1")])
async def test_a_field_that_only_a_newer_version_knows_is_ignored(tmp_path: Path, place: tuple[str, ...]) -> None:
    async with running(tmp_path) as bench:
        handle = await bench.launch("a")
        path = bench.controller.runs["a"].folder / RECORD
        token = bench.controller.runs["a"].record.token
        written = json.loads(path.read_text())
        inner = written
        for name in place:
            inner = inner[name]
        inner["of_a_newer_version"] = {"x": [1]}
        written["known"]["since_version_1"]["version"] = 99
        path.write_text(json.dumps(written))
    async with running(tmp_path, bench.driver.world) as second:
        launch = second.controller.runs["a"]
        assert second.places == {"a": ("GPU-1",)} and launch.record.token == token and not launch.damaged
        assert "since_version_1" not in launch.record.known
        handle.end()


async def test_a_record_that_is_too_new_keeps_its_devices_and_is_left_for_those_who_can_read_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as bench:
        await bench.launch("a")
        folder = bench.controller.runs["a"].folder
        for name in (RECORD, FIRST):
            written = json.loads((folder / name).read_text())
            written["known"]["since_version_1"] |= {"version": 9, "least": 8}
            (folder / name).write_text(json.dumps(written))
        left = (folder / RECORD).read_bytes()
    async with running(tmp_path, bench.driver.world) as second:
        assert second.places == {"a": ("GPU-1",)} and "version 9 wrote it for versions from 8 on" in caplog.text
        second.submit("next")
        await until(lambda: "launched next" in second.host.said)
        assert second.places["next"] == ("virtual-0",)
        assert (folder / RECORD).read_bytes() == left


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = [*of_version_1("record-plain.json"), "of_a_newer_version"]


@door
@given(changes=st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=4), torn=st.none() | st.integers(0, 1200))
def test_whatever_is_in_a_record_it_is_read_or_stood_in_for(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], torn: int | None
) -> None:
    root = tmp_path_factory.mktemp("records")
    store = RecordStore(root, "pool")
    whole, folder = store.create(a_record("whole")), store.create(a_record())
    text = json.dumps({**json.loads((folder / RECORD).read_text()), **changes})
    for name in (RECORD, FIRST):
        (folder / name).write_text(text[:torn])
    found = dict([*store, *store.damaged()])
    assert found.pop(whole) == a_record("whole")
    try:
        pool = files.load(folder / RECORD)["pool"]
    except files.UnreadableError:
        pool = None
    assert list(found) == ([] if isinstance(pool, str) and pool != "pool" else [folder]), "it may be ours"
    for record in found.values():
        store.write(folder, record)
        assert [read for at, read in store if at == folder] in ([record], [])
    shutil.rmtree(root)


_FILES: list[tuple[type[Any], str]] = [
    (Started, "process.json"),
    (Ended, "exit.json"),
    (Made, "container-process.json"),
    (ExitReport, "container-exit.json"),
]


# -- what drivers leave -----------------------------------------------------------------------------------------


async def test_the_files_of_a_process_of_version_1_are_read(tmp_path: Path) -> None:
    for name in ("claim", "process.json", "exit.json"):
        shutil.copy(VERSION_1 / name, tmp_path)
    driver = ProcessDriver(warm=False, logger=LOGGER)
    adopted = await driver.adopt("a", tmp_path)
    assert adopted is not None and adopted.pid == of_version_1("process.json")["pid"]
    report = await adopted.wait()
    assert (report.returncode, report.max_rss_bytes) == (3, of_version_1("exit.json")["max_rss_bytes"])
    await driver.close()


def test_the_files_of_a_container_of_version_1_are_read_and_those_of_a_newer_one(tmp_path: Path) -> None:
    for more in ({}, {"of_a_newer_version": 1}):
        for name in (supervisor.PROCESS, supervisor.EXIT):
            (tmp_path / name).write_text(json.dumps(of_version_1(f"container-{name}") | more))
        assert read_made(tmp_path, pytest.fail) == Made("c0ffee", "n1", "prefect-gpu-mark", 2, True)
        report = ExitReport(-9, 123, 4.5, ("last", "words"), 1700000000.5, "no memory")
        assert read_report(tmp_path, pytest.fail) == report


@door
@given(content=st.binary(max_size=40) | _JSON.map(json.dumps).map(str.encode), value=_JSON)
def test_whatever_is_in_the_files_of_a_launch_it_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, value: Any
) -> None:
    path = tmp_path_factory.mktemp("launch") / "file"
    for kind, like in _FILES:
        known = of_version_1(like)
        for written in (content, *(json.dumps(known | {name: value}).encode() for name in known)):
            path.write_bytes(written)
            said: list[str] = []
            found = files.read(kind, path, said.append)
            assert isinstance(found, kind) if not said else found is None and str(path) in said[0]
    shutil.rmtree(path.parent)


# -- the channel --------------------------------------------------------------------------------------------------

FRAMES: list[tuple[str, dict[str, Any]]] = [(who, frame) for who, frame in of_version_1("channel.json")]
EVENTS = [(frame["kind"], frame["data"]) for who, frame in FRAMES if frame["type"] == "event"]
INSTRUCTIONS = [(frame["kind"], frame["data"]) for who, frame in FRAMES if frame["type"] == "instruction"]


async def test_a_run_of_version_1_is_understood() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []
    server = ChannelServer(lambda run, kind, at, data: seen.append((kind, data)))
    await server.start()
    server.admit("a", "secret")
    for kind, data in INSTRUCTIONS:
        await server.instruct("a", kind, data)
    async with connect(server.url) as run:
        for frame in (frame for who, frame in FRAMES if who == "run" and frame["type"] != "heard"):
            await run.send(json.dumps(frame))
        told: list[dict[str, Any]] = []
        while len(told) < len(EVENTS) + len(INSTRUCTIONS) + 1:
            told.append(json.loads(await run.recv()))
            if told[-1]["type"] == "instruction":
                await run.send(json.dumps({"type": "heard", "id": told[-1]["id"]}))
    assert seen == EVENTS
    assert [(one["kind"], one["data"]) for one in told if one["type"] == "instruction"] == INSTRUCTIONS
    assert {one["type"] for one in told} == {"welcome", "instruction", "ack"}
    await server.close()


async def test_a_controller_of_version_1_is_understood_and_understands() -> None:
    said: list[dict[str, Any]] = []

    async def controller(run: ServerConnection) -> None:
        """Says what version 1 said, and demands of a run's words what it demanded."""
        said.append(json.loads(await run.recv()))
        for _, frame in (one for one in FRAMES if one[0] == "controller" and one[1]["type"] != "ack"):
            await run.send(json.dumps(frame))
        async for text in run:
            said.append(json.loads(text))
            if said[-1]["type"] == "event":
                await run.send(json.dumps({"type": "ack", "seq": said[-1]["seq"]}))

    heard: list[tuple[str, dict[str, Any]]] = []
    async with serve(controller, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        client = ChannelClient("a", "secret", lambda: url, lambda kind, data: heard.append((kind, data)))
        client.start()
        for kind, data in EVENTS:
            client.post(kind, data)
        assert await asyncio.to_thread(client.flush, 60.0)
        await until(lambda: len(heard) == len(INSTRUCTIONS))
        await asyncio.to_thread(client.close)
    theirs = next(frame for who, frame in FRAMES if frame["type"] == "hello")
    assert said[0]["protocol"] == theirs["protocol"] and theirs.keys() <= said[0].keys()
    assert heard == INSTRUCTIONS and client.refused is None
    assert [(frame["kind"], frame["data"]) for frame in said if frame["type"] == "event"] == EVENTS
    shapes = {who_says["type"]: who_says.keys() for who, who_says in FRAMES if who == "run"}
    assert all(shapes[frame["type"]] <= frame.keys() for frame in said), "and nothing of a type that it did not know"
