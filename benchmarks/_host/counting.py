"""A proxy in front of a Prefect server that counts what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_READ = ("filter", "count", "history", "paginate", "read")  # the answer to get_scheduled_flow_runs writes, too


class CountingProxy:
    """Forwards HTTP/1.1 and web sockets to a server on this machine.

    Attributes:
        seen: How often each kind of request came, as ``"POST /flow_runs/ID/set_state"``.
    """

    def __init__(self, port: int) -> None:
        self.seen: Counter[str] = Counter()
        self._port = port
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def api_url(self) -> str:
        """What ``PREFECT_API_URL`` must be to go through the proxy."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/api"

    @property
    def writes(self) -> int:
        """How many of the requests change something."""
        return sum(count for kind, count in self.seen.items() if is_write(kind))

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 24)

    async def close(self) -> None:
        """Forward nothing any more."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            up, down = await asyncio.open_connection("127.0.0.1", self._port)
            back = asyncio.ensure_future(_pump(up, writer))
            back.add_done_callback(lambda _: writer.close())  # the server has closed a connection that was idle
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, path = head.split(b" ", 2)[:2]
                    self.seen[kind_of(method.decode(), path.decode())] += 1
                    down.write(head)
                    length = _LENGTH.search(head)
                    if length is not None:
                        down.write(await reader.readexactly(int(length[1])))
                    await down.drain()
                    if b"\r\nupgrade: websocket" in head.lower():
                        await _pump(reader, down)
                        return
            finally:
                back.cancel()
                down.close()
                writer.close()


@contextlib.contextmanager
def counting(*ports: int) -> Iterator[tuple[CountingProxy, ...]]:
    """A proxy in front of each server, in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxies = tuple(CountingProxy(port) for port in ports)
    try:
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.open(), loop).result()
        yield proxies
    finally:
        for proxy in proxies:
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def kind_of(method: str, path: str) -> str:
    """A request without what makes it one of its kind.

    Example:
        >>> kind_of("GET", "/api/flow_runs/0190d0e2-7a6b-7c9e-8f10-0a1b2c3d4e5f?limit=1")
        'GET /flow_runs/ID'
    """
    path = _ID.sub("ID", path.partition("?")[0].removeprefix("/api"))
    return f"{method} {path}"


def is_write(kind: str) -> bool:
    """Whether such a request changes something on the server.

    Example:
        >>> is_write("POST /flow_runs/filter"), is_write("POST /flow_runs/ID/set_state")
        (False, True)
    """
    method, path = kind.split(" ", 1)
    return method in ("PATCH", "PUT", "DELETE") or (method == "POST" and path.rstrip("/").split("/")[-1] not in _READ)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
