"""A server on SQLite whose database is locked is asked again soon, and a gateway that says 503 is given time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
import uvicorn
from prefect.client.orchestration import PrefectClient, SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED, temporary_settings

from prefect_gpu.lab.sandbox import free_port
from prefect_gpu.prefect_client import AGAIN_S, LABELS_AGAIN_S, ask_again_soon, one_client

LOCKED = {"exception_message": "Service Unavailable"}


@pytest.fixture
def waited_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long Prefect's client was to wait, each time. It does not."""
    waited: list[float] = []
    sleep = asyncio.sleep

    async def at_once(seconds: float, *result: Any) -> None:
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr("prefect.client.base.anyio.sleep", at_once)
    monkeypatch.setattr("prefect.client.base.time.sleep", waited.append)
    return waited


async def asked(*answers: httpx.Response, what: str = "") -> httpx.Response:
    """Change a run, or something of it; these are the answers to each request."""
    left = [*answers]
    transport = httpx.MockTransport(lambda request: left.pop(0))
    async with PrefectClient("http://prefect/api", httpx_settings={"transport": transport}) as client:
        client._client.enable_csrf_support = False  # else its token is what is asked for first
        ask_again_soon(client)
        return await client._client.patch(f"/flow_runs/{uuid4()}{what}", json={"a": 1})


def asked_by_one_client(*answers: httpx.Response) -> httpx.Response:
    """The same, by a client that does not await, as submissions and sweeps have it."""
    left = [*answers]
    transport = httpx.MockTransport(lambda request: left.pop(0))
    with SyncPrefectClient("http://prefect/api", httpx_settings={"transport": transport}) as client:
        client._client.enable_csrf_support = False
        ask_again_soon(client)
        ask_again_soon(client)  # as nested calls do
        return client._client.patch(f"/flow_runs/{uuid4()}", json={"a": 1})


def test_one_client_asks_a_locked_database_again_soon(waited_s: list[float]) -> None:
    answer = asked_by_one_client(*(httpx.Response(503, json=LOCKED) for _ in range(3)), httpx.Response(204))
    assert answer.status_code == 204 and len(waited_s) == 3
    assert all(soon <= waited <= 1.5 * soon for soon, waited in zip(AGAIN_S, waited_s, strict=False))


def test_one_client_gives_a_gateway_time(waited_s: list[float]) -> None:
    asked_by_one_client(httpx.Response(503, text="Bad gateway"), httpx.Response(204))
    assert len(waited_s) == 1 and waited_s[0] >= 1.0


@pytest.fixture
def server() -> Iterator[str]:
    """The address of a server that finds its database locked, once, and logs that for a while before it hangs up."""
    refused: list[str] = []
    pause = threading.Event()  # never set; the tests do not sleep

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        locked = not refused
        refused.append(scope["path"])
        body = json.dumps(LOCKED).encode() if locked else b"null"
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 503 if locked else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        if locked:  # as Starlette does it: the answer first, then the error
            pause.wait(0.3)
            raise RuntimeError("database is locked")

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        pause.wait(0.01)
    yield f"http://127.0.0.1:{port}/api"
    server.should_exit = True
    thread.join()


async def test_a_connection_that_the_server_is_about_to_close_is_not_used_again(
    waited_s: list[float], server: str
) -> None:
    async with PrefectClient(server) as client:
        client._client.enable_csrf_support = False
        ask_again_soon(client)
        await client._client.patch("/flow_runs/1/labels", json={})
    assert len(waited_s) == 1 and waited_s[0] < 0.1


def test_nor_by_one_client(waited_s: list[float], server: str) -> None:
    with SyncPrefectClient(server) as client:
        client._client.enable_csrf_support = False
        ask_again_soon(client)
        client._client.patch("/flow_runs/1/labels", json={})
    assert len(waited_s) == 1 and waited_s[0] < 0.1


def test_prefect_itself_uses_the_one_client() -> None:
    with temporary_settings(
        {PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}
    ):
        with one_client() as client, one_client() as again, get_client(sync_client=True) as prefects:
            assert client is again is prefects


@pytest.mark.parametrize(("what", "pauses"), [("", AGAIN_S), ("/labels", LABELS_AGAIN_S)])
async def test_a_locked_database_is_asked_again_soon(
    waited_s: list[float], what: str, pauses: tuple[float, ...]
) -> None:
    answer = await asked(*(httpx.Response(503, json=LOCKED) for _ in range(3)), httpx.Response(204), what=what)
    assert answer.status_code == 204 and len(waited_s) == 3
    assert all(soon <= waited <= 1.5 * soon for soon, waited in zip(pauses, waited_s, strict=False))


async def test_one_that_stays_locked_is_given_more_and_more_time(waited_s: list[float]) -> None:
    with pytest.raises(httpx.HTTPStatusError):
        await asked(*(httpx.Response(503, json=LOCKED) for _ in AGAIN_S))
    assert waited_s == sorted(waited_s) and sum(waited_s) > 15.0


@pytest.mark.parametrize(
    ("answer", "at_least_s"),
    [
        (httpx.Response(503, text="Bad gateway"), 1.0),
        (httpx.Response(503, json=["Service Unavailable"]), 1.0),
        (httpx.Response(429, json=LOCKED), 1.0),
        (httpx.Response(503, json=LOCKED, headers={"Retry-After": "7"}), 7.0),
    ],
)
async def test_who_else_says_that_it_is_busy_is_given_the_time_that_prefect_gives(
    waited_s: list[float], answer: httpx.Response, at_least_s: float
) -> None:
    await asked(answer, httpx.Response(204))
    assert len(waited_s) == 1 and waited_s[0] >= at_least_s
