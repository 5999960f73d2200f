"""A proxy in front of a Prefect server that answers in its place, as gateways, restarts and bad networks do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

STREAM = r"GET /api/events/out"
"""The request that opens Prefect's event stream."""

Answer = int | Literal["refuse", "freeze", "cut", "truncate", "slow"]


@dataclass(eq=False)
class Fault:
    """What happens to the requests that it meets.

    Attributes:
        answer: A status, such as 404, which the server never hears of. ``"refuse"``: the connection is refused, or
            reset where only some paths are met. ``"freeze"``: nothing is answered until the fault is gone; then the
            request is passed on. ``"cut"``: the server carries the request out, and its answer is lost.
            ``"truncate"``: half of the answer's body comes, and then the connection ends.
            ``"slow"``: it is passed on after ``delay_s``.
        path: A pattern that is searched in ``GET /api/flow_runs/...``; empty: every request.
        body: What a status comes with.
        times: How many requests it meets before it is spent; None: all of them. Streams that it cuts do not count.
        met: How many it has met.
        over: Set once it is healed.
    """

    answer: Answer
    path: str = ""
    body: str = "<html><body>no backend</body></html>"
    delay_s: float = 1.0
    times: int | None = None
    met: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def meets(self, request: str) -> bool:
        """Whether this request, given by its first line, is one of its own."""
        return (self.times is None or self.met < self.times) and re.search(self.path, request) is not None


class Proxy:
    """Passes HTTP requests and WebSockets on to a Prefect server on this machine, but for those that a fault meets.

    Each request has a connection of its own, so that a fault counts from the next request on, whatever connections the
    client keeps. Streams that a new fault meets are cut, or stand still while it is ``"freeze"``.

    Args:
        port: The server's.

    Example:
        >>> async with Proxy(4200) as proxy:                              # doctest: +SKIP
        ...     worker = start(PREFECT_API_URL=proxy.api_url)
        ...     gone = await proxy.fail(404, r"/api/flow_runs/")          # a gateway without a backend
        ...     await proxy.heal(gone)
    """

    def __init__(self, port: int) -> None:
        self.opened = 0  # how often the event stream was
        self._port = port
        self._faults: list[Fault] = []
        self._flows = asyncio.Event()  # clear while everything stands still
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[asyncio.StreamWriter, str] = {}
        self._server: asyncio.Server | None = None
        self._own_port = 0

    async def __aenter__(self) -> Proxy:
        await self._follow_faults()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def api_url(self) -> str:
        """What PREFECT_API_URL must be to go through the proxy."""
        return f"http://127.0.0.1:{self._own_port}/api"

    async def fail(self, answer: Answer, path: str = "", **more: Any) -> Fault:
        """Begin to answer so, beside the faults that there are; the first that meets a request counts.

        Args:
            answer, path, more: See :class:`Fault`.
        """
        fault = Fault(answer, path, **more)
        self._faults.append(fault)
        await self._follow_faults()
        if answer != "freeze":
            for writer, request in list(self._streams.items()):
                if fault.meets(request):
                    writer.transport.abort()
        return fault

    async def heal(self, *faults: Fault) -> None:
        """End these faults; none given: all."""
        for fault in faults or tuple(self._faults):
            fault.over.set()
        self._faults = [fault for fault in self._faults if not fault.over.is_set()]
        await self._follow_faults()

    async def _follow_faults(self) -> None:
        """Listen unless everything is refused, and let bytes flow unless everything is frozen."""
        everywhere = {fault.answer for fault in self._faults if not fault.path and fault.times is None}
        if "refuse" in everywhere and self._server is not None:
            self._server.close()
            self._server = None
        elif "refuse" not in everywhere and self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._own_port)
            self._own_port = self._server.sockets[0].getsockname()[1]
        self._flows.clear() if "freeze" in everywhere else self._flows.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._start(self._serve(reader, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                request = head.partition(b"\r\n")[0].decode()
                length = re.search(rb"\r\ncontent-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                fault = await self._fault_of(request)
                if fault is None or fault.answer in ("cut", "truncate", "slow"):
                    await asyncio.sleep(fault.delay_s if fault and fault.answer == "slow" else 0)
                    await self._pass_on(request, head, body, reader, writer, fault.answer if fault else None)
                elif fault.answer == "refuse":
                    writer.transport.abort()
                else:
                    start = f"HTTP/1.1 {fault.answer} No\r\nContent-Type: text/html\r\nConnection: close\r\n"
                    writer.write(f"{start}Content-Length: {len(fault.body)}\r\n\r\n{fault.body}".encode())
                    await writer.drain()
            finally:
                writer.close()

    async def _fault_of(self, request: str) -> Fault | None:
        """What meets this request. While that is a standstill, it is waited for."""
        while (fault := next((fault for fault in self._faults if fault.meets(request)), None)) is not None:
            fault.met += 1
            if fault.answer != "freeze":
                return fault
            await fault.over.wait()
        return None

    async def _pass_on(
        self,
        request: str,
        head: bytes,
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Answer | None,
    ) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            if re.search(rb"\r\nupgrade: *websocket", head, re.IGNORECASE):
                self._streams[writer] = request
                self.opened += re.search(STREAM, request) is not None
            else:
                head = re.sub(rb"\r\nconnection: [^\r]*", b"", head, flags=re.IGNORECASE)
                head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            down.write(head + body)
            if answer == "cut":
                await up.read(1)
                writer.transport.abort()
            elif answer == "truncate" and writer not in self._streams:
                writer.write(_half(await up.read()))
                await writer.drain()
            else:
                await asyncio.gather(self._pump(reader, down), self._pump(up, writer))
        finally:
            self._streams.pop(writer, None)
            down.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._flows.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError):
            writer.write_eof()


def _half(answer: bytes) -> bytes:
    """An answer with half of its body."""
    head, end, body = answer.partition(b"\r\n\r\n")
    return head + end + body[: len(body) // 2]
