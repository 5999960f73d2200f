"""The door of the channel: whatever a run's process sends, the worker goes on, and the run ends as it does."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from prefect_gpu.runtime.overview import details, overview
from prefect_gpu.scheduling.model.codec import plain
from prefect_gpu.training import protocol
from tests.doors.nonsense import door, numbers, scalars, tables, texts, values
from tests.runtime.launch.test_report_schema import KINDS, NAMES
from tests.runtime.test_controller import Bench, running, until

FIELDS = NAMES.split()
counts = st.integers(0, 9)
points = st.lists(st.lists(counts | numbers, min_size=1, max_size=2), max_size=5)
data = tables(*FIELDS) | st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(protocol.PHASES),
        "step": counts | numbers,
        "steps": counts | numbers,
        "loss": st.floats() | numbers,
        "losses": points,
        "steps_per_s": numbers,
        "features": st.dictionaries(texts, scalars),
        "metrics": st.dictionaries(texts, scalars),
        "waiting": st.booleans(),
        "rss_bytes": numbers,
        "device_util": st.floats(0, 1) | numbers,
        "error": texts,
    },
)
events = st.builds(
    lambda kind, at, data, more: {"type": "event", "kind": kind, "at": at, "data": data} | more,
    st.sampled_from(KINDS) | texts,
    st.floats(900, 1100) | numbers,
    data,
    st.just({}) | st.fixed_dictionaries({"clock": numbers}) | tables("seq", "type", "clock"),
)
frames = st.lists(events | tables("type", "id", "seq", "kind", "at", "data") | values | st.text(max_size=9), max_size=5)
HEARD = {"type": "event", "kind": "usage", "seq": 10**402, "at": 1000.0, "data": {"rss_bytes": 1}}
hellos = tables("type", "protocol", "run", "token", "session", "clock")


@door
@example([{"type": "event", "kind": "usage", "at": 10**400, "data": {}}], {})
@given(frames, hellos)
async def test_frames(caplog: pytest.LogCaptureFixture, said: list[Any], hello: dict[str, Any]) -> None:
    caplog.clear()
    caplog.set_level(logging.WARNING)
    with TemporaryDirectory() as folder:
        async with running(Path(folder)) as bench:
            handle = await bench.launch()
            url = bench.driver.specs[-1].env[protocol.ENV_CHANNEL]
            async with connect(url, proxy=None) as stranger:
                await _send(stranger, hello)
            for number, frame in enumerate([*said, "", HEARD], start=1):
                await _say(url, bench, number, frame)
            assert bench.controller.runs["a"].usage["rss_bytes"].count >= 1, "it is listened to at the end as ever"
            json.dumps(overview(bench.controller, bench.now), allow_nan=False)
            json.dumps(details(bench.controller, 1, bench.now), allow_nan=False)
            bench.now += 100.0
            handle.end(0)
            await until(lambda: bench.host.rows)
            await bench.controller.wait_idle()
            json.dumps(bench.host.rows[0], default=plain, allow_nan=False)
            assert bench.places == {} and bench.host.rows[0].outcome == "completed"
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


async def _say(url: str, bench: Bench, number: int, frame: Any) -> None:
    """Connect as the run, and send one frame and an event; the worker acknowledges an event or hangs up."""
    env = bench.driver.specs[-1].env
    hello = {"type": "hello", "protocol": protocol.PROTOCOL_VERSION, "session": "one"}
    async with connect(url, proxy=None) as run:
        await _send(run, hello | {"run": env[protocol.ENV_RUN_ID], "token": env[protocol.ENV_TOKEN]})
        assert json.loads(await run.recv())["type"] == "welcome"
        known = isinstance(frame, dict) and frame.get("type") == "event" and "seq" not in frame
        with suppress(ConnectionClosed):
            await _send(run, frame | {"seq": number} if known else frame)
            if not known:  # it may be none that is answered
                await _send(run, {"type": "event", "kind": "", "seq": number, "at": 1000.0, "data": {}})
            while json.loads(await run.recv())["type"] != "ack":
                pass


async def _send(run: ClientConnection, frame: Any) -> None:
    text = frame if isinstance(frame, str) else json.dumps(frame)
    await run.send(text.replace("Infinity", "1e999").encode("utf-8", "replace").decode())
