"""The page's web application: a few files and two questions, nothing that changes anything.

It tells names of runs, flows, nodes and devices, losses and the scheduler's reasons; no parameters, no results, no
keys. It answers to this machine only, unless the worker is told another address: then whoever asks must know a token.
And it answers only under names that are this machine's: a foreign web site whose name is made to point here (DNS
rebinding) learns nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prefect_gpu.phases import FAILED, PHASES

_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_MOST_DIGITS = 15  # Python reads no number of thousands of them

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
"""Sent with every answer: nothing from elsewhere is loaded, and no other site may embed or read the page."""


class Source(Protocol):
    """Knows what the page shows. Each method is called on the event loop that serves the page."""

    def overview(self, since: int, queue_from: int | None = None) -> dict[str, Any]:
        """The pool now; see :func:`prefect_gpu.runtime.overview.overview`."""

    def details(self, number: int) -> dict[str, Any] | None:
        """One launch; see :func:`prefect_gpu.runtime.overview.details`."""

    def promise(self, asked: dict[str, Any]) -> dict[str, Any]:
        """See :func:`prefect_gpu.worker.deadlines.asked_before.could_be_promised`.

        Raises:
            ValueError: A value is not allowed.
        """


Metrics = Callable[[str], tuple[bytes, str]]
"""Gives all metrics, and their media type, as an ``Accept`` header wants them."""


def page_app(source: Source, *, names: Iterable[str] = (), token: str = "", metrics: Metrics | None = None) -> ASGIApp:
    """The application.

    Args:
        source: What to show.
        names: Host names under which the page may be asked for, beside ``localhost``, this machine's own name, and
            addresses.
        token: What one must know to be answered anything; empty: nothing.
        metrics: What ``/metrics`` answers; None: there is no such address.
    """
    # Numbers of versions mean nothing to another worker: a page that outlives its worker must begin anew.
    epoch = secrets.token_hex(4)

    async def overview(request: Request) -> Response:
        since = request.query_params.get("since", "")
        same = request.query_params.get("epoch") == epoch
        queue = request.query_params.get("queue", "")
        queue_from = int(queue[:9]) if queue.isdecimal() and queue.isascii() else None
        version = int(since[:_MOST_DIGITS]) if same and since.isdecimal() else 0
        return _json({"epoch": epoch, **source.overview(version, queue_from)})

    async def details(request: Request) -> Response:
        number = request.path_params["number"]
        if not (number.isdecimal() and number.isascii()):
            return PlainTextResponse("Not Found", 404)
        found = source.details(int(number)) if len(number) < _MOST_DIGITS else None
        if found is None:
            return PlainTextResponse("This run is not kept any more: see the history.\n", 404)
        return _json(found)

    async def promise(request: Request) -> Response:
        try:
            if int(request.headers.get("content-length", "0")) > _MOST_ASKED:
                return PlainTextResponse(f"asked is larger than {_MOST_ASKED} bytes: leave parameters out.\n", 400)
            # An address has room for 64 KiB, and parameters may be more.
            text = await request.body() if request.method == "POST" else request.query_params.get("asked", "")
            asked = json.loads(text)
            return _json(source.promise(asked if isinstance(asked, dict) else {}))
        except (ValueError, RecursionError) as error:
            return PlainTextResponse(f"{error}\n", 400)

    routes = [
        Route("/api/overview", overview),
        Route("/api/runs/{number}", details),
        Route("/api/promise", promise, methods=["GET", "POST"]),
    ]
    if metrics is not None:
        routes.append(Route("/metrics", _measured(metrics)))
    for path in sorted(_STATIC.iterdir()):
        if path.suffix in _TYPES:
            at = "/" if path.name == "index.html" else f"/{path.name}"
            routes.append(Route(at, _always(path.read_bytes(), path.suffix)))
    routes += [Route("/phases.css", _always(phases_css(), ".css")), Route("/phases.js", _always(phases_js(), ".js"))]
    allowed = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}
    return Starlette(routes=routes, middleware=[Middleware(_Guard, names=frozenset(allowed), token=token)])


def _json(data: dict[str, Any]) -> Response:
    # Python writes NaN, which no browser reads; a loss may be one.
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(data), separators=(",", ":"))
    return Response(text, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def phases_css() -> str:
    """The colours of the phases as variables: ``--training``, and ``--on-training`` for what is written on it."""
    shown = {**PHASES, "failed": FAILED}
    light = "".join(f"--{name}: {phase.colour}; --on-{name}: {phase.ink}; " for name, phase in shown.items())
    dark = "".join(f"--{name}: {phase.dark}; --on-{name}: {phase.dark_ink}; " for name, phase in shown.items())
    chips = "".join(f".{name} {{ background: var(--{name}); color: var(--on-{name}); }}\n" for name in shown)
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{chips}"


def phases_js() -> str:
    """The words for the phases, as a module."""
    words = {name: phase.word for name, phase in PHASES.items()}
    past = {name: phase.past for name, phase in PHASES.items() if phase.past}
    return f"export const PHASES = {json.dumps(words)};\nexport const PAST = {json.dumps(past)};\n"


def _measured(metrics: Metrics) -> Any:
    async def send(request: Request) -> Response:
        body, media_type = metrics(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": media_type})

    return send


def _always(content: bytes | str, suffix: str) -> Any:
    async def send(_: Request) -> Response:
        return Response(content, media_type=_TYPES[suffix])

    return send


_MOST_ASKED = 16 * 2**20
_NOT_OURS = "This name is not one of the worker's: ask for the address that the worker printed.\n"
_NO_TOKEN = (
    "This page wants its token: open the address with ?token=... that the worker printed as it started. A program "
    "sends the header `Authorization: Bearer ...`. PREFECT_INTEGRATIONS_GPU_PAGE_TOKEN sets another one, or none.\n"
)


class _Guard:
    """Refuses names that are not ours and those who do not know the token, and adds the headers."""

    def __init__(self, app: ASGIApp, names: frozenset[str], token: str) -> None:
        self._app, self._names, self._token = app, names, token
        # A browser keeps cookies by host, whatever the port: each page has its own.
        self._cookie = f"prefect-gpu-{hashlib.sha256(token.encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), "")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        answer: ASGIApp = self._app
        if not is_ours(host, self._names):
            answer = PlainTextResponse(_NOT_OURS, 421)
        elif self._token:
            answer = self._admitted(Request(scope))
        await answer(scope, receive, with_headers)

    def _admitted(self, request: Request) -> ASGIApp:
        """What answers somebody who may or may not know the token: by a header, a cookie, or the address."""
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._is_token(shown) or self._is_token(request.cookies.get(self._cookie, "")):
            return self._app
        if not self._is_token(request.query_params.get("token", "")):
            return PlainTextResponse(_NO_TOKEN, 401, {"WWW-Authenticate": "Bearer"})
        if request.url.path != "/":
            return self._app
        # The address bar, and whatever keeps a list of addresses, should not go on showing it.
        home = RedirectResponse(".", 303)
        home.set_cookie(self._cookie, self._token, httponly=True, samesite="lax")
        return home

    def _is_token(self, shown: str) -> bool:
        return secrets.compare_digest(shown.encode(), self._token.encode())


def is_ours(host: str, names: Iterable[str]) -> bool:
    """Whether a Host header names this machine. An address always may: a rebound name is a name.

    Example:
        >>> [is_ours(host, {"localhost"}) for host in ("localhost:4280", "[::1]:80", "10.0.0.7", "evil.example", "")]
        [True, True, True, False, False]
    """
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
