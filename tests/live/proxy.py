"""A proxy in front of a Prefect server that can keep its event stream from a worker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

_STREAM = b"GET /api/events/out"


class StreamlessProxy:
    """Forwards TCP connections to a Prefect server, and closes those that ask for the event stream while that is shut.

    Args:
        port: The server's port on this machine.

    Example:
        >>> async with StreamlessProxy(4200) as proxy:                    # doctest: +SKIP
        ...     ...                        # proxy.api_url has no event stream
        ...     proxy.shut = False         # and now it has
    """

    def __init__(self, port: int) -> None:
        self.shut = True
        self.refused = 0  # how often the stream was asked for in vain
        self.opened = 0
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> StreamlessProxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def api_url(self) -> str:
        """What PREFECT_API_URL must be to go through the proxy."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/api"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                request = await reader.readuntil(b"\r\n")
                if request.startswith(_STREAM):
                    if self.shut:
                        self.refused += 1
                        return
                    self.opened += 1
                up, down = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    down.write(request)
                    await asyncio.gather(_pump(reader, down), _pump(up, writer))
                finally:
                    down.close()
            finally:
                writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()
