"""The channel's server against raw WebSocket clients: real sockets, no run side."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from prefect_gpu.runtime.channel import ChannelServer, new_token
from prefect_gpu.training.channel.client import FATAL_CODES, ChannelClient
from prefect_gpu.training.protocol import (
    CLOSE_FORGED,
    CLOSE_MALFORMED,
    CLOSE_OVER,
    CLOSE_REUSED,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
)


class Fixture:
    """A server, what it handed over, and clients of it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, Any]] = []
        self.sessions: list[tuple[str, str]] = []
        self.token = new_token()
        self.server = ChannelServer(self.on_event, on_session=lambda *pair: self.sessions.append(pair), hello_seconds=5)
        self.server.admit("run", self.token)
        self.gate: asyncio.Event | None = None
        self.entered = asyncio.Event()

    async def on_event(self, run_id: str, kind: str, at: float, data: dict[str, Any]) -> None:
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        if kind == "boom":
            raise RuntimeError("a bug in the controller")
        self.events.append((run_id, kind, data.get("n")))

    async def open(self, **hello: Any) -> ClientConnection:
        client = await connect(self.server.url, proxy=None)
        await send(client, **{**self.hello, **hello})
        return client

    async def join(self, **hello: Any) -> tuple[ClientConnection, int]:
        client = await self.open(**hello)
        welcome = await receive(client)
        assert welcome["type"] == "welcome"
        return client, welcome["acked"]

    async def rejected(self, **hello: Any) -> tuple[int, str]:
        return await closed(await self.open(**hello))

    @property
    def hello(self) -> dict[str, Any]:
        return {
            "type": "hello",
            "protocol": PROTOCOL_VERSION,
            "run": "run",
            "token": self.token,
            "session": "one",
        }


async def send(client: ClientConnection, **frame: Any) -> None:
    await client.send(json.dumps(frame))


async def receive(client: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(client.recv(), 30))


async def event(client: ClientConnection, seq: int, kind: str = "progress") -> None:
    await send(client, type="event", seq=seq, at=1.5, kind=kind, data={"n": seq})


async def closed(client: ClientConnection) -> tuple[int, str]:
    """How the server closed the connection."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            await asyncio.wait_for(client.recv(), 30)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


@pytest.fixture
async def channel() -> AsyncIterator[Fixture]:
    fixture = Fixture()
    await fixture.server.start()
    yield fixture
    await fixture.server.close()


async def test_events_are_handed_over_in_order_and_acknowledged(channel: Fixture) -> None:
    client, acked = await channel.join()
    assert acked == 0
    for seq in range(1, 51):
        await event(client, seq)
    assert [(await receive(client))["seq"] for _ in range(50)] == list(range(1, 51))
    assert channel.events == [("run", "progress", seq) for seq in range(1, 51)]
    assert channel.server.connected("run") and not channel.server.connected("other")


async def test_an_event_sent_again_is_handled_once(channel: Fixture) -> None:
    client, _ = await channel.join()
    await event(client, 1)
    await event(client, 2)
    await event(client, 2)
    for _ in range(3):
        await receive(client)
    again, acked = await channel.join()
    assert acked == 2
    for seq in (1, 2, 5):  # a gap: what was in between has become pointless
        await event(again, seq)
    assert [(await receive(again))["seq"] for _ in range(3)] == [2, 2, 5]
    assert [number for *_, number in channel.events] == [1, 2, 5]


async def test_a_reconnection_while_an_event_is_handled_does_not_handle_it_twice(channel: Fixture) -> None:
    channel.gate = asyncio.Event()
    client, _ = await channel.join()
    await event(client, 1)
    await channel.entered.wait()
    joining = asyncio.create_task(channel.join())
    await asyncio.sleep(0)
    channel.gate.set()
    again, acked = await joining
    assert acked == 1
    await event(again, 1)
    assert (await receive(again))["seq"] == 1
    assert len(channel.events) == 1


async def test_closing_finishes_and_acknowledges_what_is_being_handled(channel: Fixture) -> None:
    channel.gate = asyncio.Event()
    client, _ = await channel.join()
    await event(client, 1)
    await channel.entered.wait()
    closing = asyncio.create_task(channel.server.close())
    await asyncio.sleep(0)
    channel.gate.set()
    assert await receive(client) == {"type": "ack", "seq": 1}
    code, _ = await closed(client)
    await closing
    assert code == 1001 and channel.events == [("run", "progress", 1)]


async def test_a_bug_in_the_controller_costs_one_event(channel: Fixture, caplog: Any) -> None:
    client, _ = await channel.join()
    await event(client, 1, "boom")
    await event(client, 2)
    assert [(await receive(client))["seq"] for _ in range(2)] == [1, 2]
    assert channel.events == [("run", "progress", 2)] and "a bug in the controller" in caplog.text


async def test_a_forged_token_is_refused_and_logged_without_it(channel: Fixture, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        code, reason = await channel.rejected(token="guess")
    assert code == CLOSE_FORGED and "token" in reason
    assert "'run'" in caplog.text and "127.0.0.1" in caplog.text
    assert "guess" not in caplog.text and channel.token not in caplog.text


async def test_a_token_belongs_to_the_first_process_that_shows_it(channel: Fixture, caplog: Any) -> None:
    client, _ = await channel.join()
    code, reason = await channel.rejected(session="two")
    assert code == CLOSE_REUSED and "another process" in reason
    await event(client, 1)
    assert (await receive(client))["seq"] == 1
    assert channel.sessions == [("run", "one")]
    await channel.join()
    assert channel.sessions == [("run", "one")]


async def test_the_binding_survives_the_worker(channel: Fixture) -> None:
    channel.server.admit("kept", "token", session="one")
    code, _ = await channel.rejected(run="kept", token="token", session="two")
    assert code == CLOSE_REUSED
    await channel.join(run="kept", token="token", session="one")


async def test_a_binding_that_could_not_be_stored_is_tried_again(channel: Fixture) -> None:
    def fail(run_id: str, session: str) -> None:
        channel.server._on_session = lambda *pair: channel.sessions.append(pair)
        raise OSError("disk full")

    channel.server._on_session = fail
    code, _ = await channel.rejected()
    assert code == 1011
    await channel.join()
    assert channel.sessions == [("run", "one")]


async def test_a_new_token_replaces_the_old_one_and_its_user(channel: Fixture) -> None:
    client, _ = await channel.join()
    await event(client, 7)
    await receive(client)
    channel.server.admit("run", "fresh")
    assert (await closed(client))[0] == CLOSE_OVER
    assert (await channel.rejected())[0] == CLOSE_FORGED
    _, acked = await channel.join(token="fresh", session="two")
    assert acked == 0


async def test_admitting_again_with_the_same_token_disturbs_nobody(channel: Fixture) -> None:
    client, _ = await channel.join()
    channel.server.admit("run", channel.token)
    await event(client, 1)
    assert (await receive(client))["seq"] == 1


async def test_a_run_that_is_over_is_told_so(channel: Fixture) -> None:
    client, _ = await channel.join()
    channel.server.revoke("run")
    channel.server.revoke("run")
    assert (await closed(client))[0] == CLOSE_OVER
    assert (await channel.rejected())[0] == CLOSE_OVER
    assert (await channel.rejected(run="never"))[0] == CLOSE_OVER
    assert not channel.server.connected("run") and not await channel.server.instruct("run", "stop", {})


async def test_a_new_connection_of_the_same_process_replaces_the_old_one(channel: Fixture) -> None:
    first, _ = await channel.join()
    second, _ = await channel.join()
    assert (await closed(first))[0] == 1000
    assert channel.server.connected("run")
    assert await channel.server.instruct("run", "stop", {})
    assert (await receive(second))["kind"] == "stop"


async def test_instructions_wait_for_the_run_and_are_repeated_until_heard(channel: Fixture) -> None:
    assert await channel.server.instruct("run", "open_gate", {}) is False
    client, _ = await channel.join()
    first = await receive(client)
    assert (first["type"], first["kind"], first["data"]) == ("instruction", "open_gate", {})
    assert await channel.server.instruct("run", "stop", {"reason": "x"}) is True
    second = await receive(client)
    await send(client, type="heard", id=first["id"])
    await event(client, 1)  # acknowledged after the frame before it was read
    await receive(client)
    again, _ = await channel.join()
    assert await receive(again) == second


async def test_a_run_that_has_not_listened_for_long_hears_the_newest_of_each_kind(channel: Fixture) -> None:
    await channel.server.instruct("run", "open_gate", {})
    for number in range(200):
        await channel.server.instruct("run", "use_cpus", {"cpus": [number]})
    client, _ = await channel.join()
    heard = [await receive(client) for _ in range(2)]
    assert [(frame["kind"], frame["data"]) for frame in heard] == [("open_gate", {}), ("use_cpus", {"cpus": [199]})]
    assert len(channel.server._runs["run"].instructions) == 2


GOOD: dict[str, Any] = {"type": "event", "seq": 1, "at": 1.0, "kind": "progress", "data": {}}


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "nonsense",
        "[]",
        "1",
        "[" * 50_000,
        b"\x00\x01",
        '{"type":"event","seq":1,"at":NaN,"kind":"progress","data":{}}',
        json.dumps({"type": 7}),
        json.dumps({"type": "hello"}),
        json.dumps({**GOOD, "seq": 0}),
        json.dumps({**GOOD, "seq": "1"}),
        json.dumps({**GOOD, "seq": True}),
        json.dumps({**GOOD, "at": None}),
        json.dumps({**GOOD, "at": True}),
        json.dumps({**GOOD, "kind": 3}),
        json.dumps({**GOOD, "kind": "x" * 600}),
        json.dumps({**GOOD, "data": []}),
        json.dumps({"type": "heard", "id": 1}),
        json.dumps({"type": "heard", "id": "\ud800"}),
    ],
    ids=range(19),
)
async def test_malformed_frames_end_their_connection_and_nothing_else(channel: Fixture, frame: str | bytes) -> None:
    other_token = new_token()
    channel.server.admit("other", other_token)
    other, _ = await channel.join(run="other", token=other_token)
    client, _ = await channel.join()
    await client.send(frame)
    assert (await closed(client))[0] == CLOSE_MALFORMED
    stranger = await connect(channel.server.url, proxy=None)
    await stranger.send(frame)
    assert (await closed(stranger))[0] == CLOSE_MALFORMED
    await event(other, 1)
    assert (await receive(other))["seq"] == 1
    assert channel.events == [("other", "progress", 1)]


@pytest.mark.parametrize(
    "hello",
    [
        {"protocol": "1"},
        {"newest": None},
        {"run": ""},
        {"run": 3},
        {"token": None},
        {"session": "x" * 600},
        {"session": "\ud800"},
    ],
)
async def test_a_malformed_hello_is_refused_with_a_reason(channel: Fixture, hello: dict[str, Any]) -> None:
    code, reason = await channel.rejected(**hello)
    assert code == CLOSE_MALFORMED and reason


@pytest.mark.parametrize(
    ("says", "common"),
    [
        ({"protocol": 1}, 1),  # the version before there were several
        ({"protocol": 1, "newest": 2}, 2),
        ({"protocol": 1, "newest": 99}, PROTOCOL_VERSION),
        ({"protocol": PROTOCOL_VERSION, "newest": 99, "more": {"to": "say"}}, PROTOCOL_VERSION),
    ],
)
async def test_a_run_of_another_version_is_spoken_to_in_what_both_speak(
    channel: Fixture, says: dict[str, Any], common: int
) -> None:
    client = await channel.open(**says)
    assert (await receive(client))["protocol"] == common
    await send(client, type="something new", words=[1])
    await event(client, 1)
    assert (await receive(client))["seq"] == 1, "what is not known is ignored, and the rest is heard"


@pytest.mark.parametrize("says", [{"protocol": PROTOCOL_VERSION + 1, "newest": 99}, {"protocol": 0, "newest": 0}])
async def test_a_run_that_speaks_nothing_of_ours_may_try_again(channel: Fixture, says: dict[str, Any]) -> None:
    """A worker that was rolled back will be upgraded again, and the run is still there."""
    code, reason = await channel.rejected(**says)
    assert code not in FATAL_CODES and "this worker speaks protocol" in reason


async def test_a_frame_that_is_too_large_ends_its_connection(channel: Fixture) -> None:
    client, _ = await channel.join()
    await client.send("x" * (MAX_FRAME_BYTES + 1))
    assert (await closed(client))[0] == 1009
    assert channel.server.url and not channel.events


async def test_who_says_nothing_is_not_waited_for_long(channel: Fixture) -> None:
    channel.server._hello_seconds = 0.01
    silent = await connect(channel.server.url, proxy=None)
    assert (await closed(silent))[0] == CLOSE_MALFORMED


async def test_no_web_page_gets_in(channel: Fixture) -> None:
    for origin in ("http://evil.example", "http://127.0.0.1", "null"):
        with pytest.raises(InvalidStatus) as caught:
            await connect(channel.server.url, origin=origin, proxy=None)  # type: ignore[arg-type]
        assert caught.value.response.status_code == 403


async def test_bytes_that_are_no_websocket_do_not_hurt(channel: Fixture) -> None:
    host, port = channel.server.url.removeprefix("ws://").split(":")
    for garbage in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b""):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        writer.write_eof()
        await reader.read()
        writer.close()
    await channel.join()


async def test_the_address_is_known_only_after_start() -> None:
    server = ChannelServer(lambda *all: None)
    with pytest.raises(RuntimeError, match="start"):
        _ = server.url
    await server.close()
    assert len({new_token() for _ in range(100)}) == 100


async def test_runs_wait_until_it_is_known_who_there_is() -> None:
    heard: list[int] = []
    server = ChannelServer(lambda run, kind, at, data: heard.append(data["step"]))
    await server.start(waiting=True)
    token = new_token()
    client = ChannelClient("run", token, lambda: server.url, lambda kind, data: None)
    client.start()
    client.post("progress", {"step": 1})
    await asyncio.sleep(0.1)
    assert client.refused is None and not heard
    server.admit("run", token)
    server.open()
    while not heard:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.to_thread(client.close)
    await server.close()


def client_of(server: ChannelServer, run_id: str, token: str, ended: list[str]) -> ChannelClient:
    return ChannelClient(
        run_id, token, lambda: server.url, lambda kind, data: None, superseded=lambda: ended.append(f"{run_id} {token}")
    )


async def test_a_process_that_was_given_up_ends_also_if_it_was_never_let_in() -> None:
    ended: list[str] = []
    server = ChannelServer(lambda run, kind, at, data: None)
    await server.start()
    server.admit("run", "ours")
    server.admit("again", "second launch")
    ours, slow, late = (
        client_of(server, run_id, token, ended)
        for run_id, token in (("run", "ours"), ("again", "first launch"), ("over", "any"))
    )
    ours.start()
    assert await asyncio.to_thread(ours.heard_of, 60.0) and not ended
    server.revoke("run")  # its node is lost, say
    for client in (slow, late):
        client.start()
        assert await asyncio.to_thread(client.heard_of, 60.0)
    while len(ended) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert set(ended) == {"run ours", "again first launch", "over any"}
    for client in (ours, slow, late):
        await asyncio.to_thread(client.close)
    await server.close()


async def test_a_second_process_with_the_token_of_one_that_reports_goes_on() -> None:
    ended: list[str] = []
    server = ChannelServer(lambda run, kind, at, data: None)
    await server.start()
    server.admit("run", "ours")
    first, second = (client_of(server, "run", "ours", ended) for _ in range(2))
    for client in (first, second):
        client.start()
        assert await asyncio.to_thread(client.heard_of, 60.0)
    assert first.connected and second.refused and not ended
    for client in (first, second):
        await asyncio.to_thread(client.close)
    await server.close()


async def test_nobody_waits_long_for_a_controller_that_is_away() -> None:
    client = ChannelClient("run", "ours", lambda: None, lambda kind, data: None)
    client.start()
    assert not await asyncio.to_thread(client.heard_of, 0.1)
    await asyncio.to_thread(client.close)
