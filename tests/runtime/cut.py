"""A proxy between runs and their worker's channel that can be cut."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path


class Cut:
    """Forwards connections to whatever worker is there now.

    Args:
        file: The worker's channel file: read for where the worker listens, and written again to name the proxy.
    """

    def __init__(self, file: Path) -> None:
        self.is_cut = False
        self._file = file
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def stand_before(self) -> None:
        """Take the place of the worker that has just opened its channel."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = int(json.loads(self._file.read_text())["url"].rpartition(":")[2])
        own = self._server.sockets[0].getsockname()[1]
        temporary = self._file.with_suffix(".cut")
        temporary.write_text(json.dumps({"url": f"ws://127.0.0.1:{own}"}))
        temporary.replace(self._file)

    def cut(self) -> None:
        """Nothing passes any more, in either direction; what is on its way is lost."""
        self.is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """End the proxy."""
        self.cut()
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self.is_cut:
                up, down = await asyncio.open_connection("127.0.0.1", self._port)
                self._writers.add(down)
                await asyncio.gather(_pump(reader, down), _pump(up, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
