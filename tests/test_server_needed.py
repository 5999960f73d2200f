"""Whoever starts or watches runs without a server is told what to do, in the same words everywhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_gpu import gpu, sweep, watch
from prefect_gpu.server_needed import server_needed


@gpu("pool")
@flow
def train(lr: float = 0.1) -> float:
    return lr


ASKS: dict[str, Callable[[], Any]] = {
    "submit": train.submit,
    "start": train.start,
    "watch": lambda: watch([uuid4()]),
    "sweep": lambda: sweep(train, {"lr": (0.0, 1.0)}, trials=1),
}


@pytest.fixture(scope="module")
def closed_server() -> Iterator[str]:
    """The address of a server that lets nobody in."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}/api"
        server.shutdown()


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize(
    "url, said",
    [
        (None, "PREFECT_API_URL is not set. Say where Prefect's server is"),
        ("http://me:secret@127.0.0.1:9/api", "No Prefect server answers at http://127.0.0.1:9/api"),
        ("http://{closed}", "PREFECT_API_URL=http://{closed} answers 401. Give PREFECT_API_KEY"),
    ],
    ids=["none set", "none there", "closed"],
)
def test_what_takes_a_server_says_what_to_do_without_one(
    ask: Callable[[], Any], url: str | None, said: str, closed_server: str
) -> None:
    """Prefect started one for this process: there was "no work pool", and to make one as was said did not help."""
    settings: dict[Any, Any] = {PREFECT_CLIENT_MAX_RETRIES: 0}
    if url is not None:
        settings[PREFECT_API_URL] = url.format(closed=closed_server)
    with temporary_settings(settings, restore_defaults={PREFECT_API_URL}):
        with pytest.raises(ConnectionError, match=re.escape(said.format(closed=closed_server))):
            ask()


def test_what_prefect_refuses_with_reasons_is_left_to_it() -> None:
    answer = httpx.Response(422, request=httpx.Request("POST", "http://127.0.0.1:9/api"))
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with pytest.raises(httpx.HTTPStatusError), server_needed():
            answer.raise_for_status()
