"""Stands in for the package ``websockets`` on a machine that has none, so that the channel works there, too.

The channel's own words, acknowledgements and tokens are the real ones; only what carries its messages is simpler: a
frame is its length, one letter (``t`` text, ``c`` close) and its content, over TCP. It offers no more of the package
than :mod:`prefect_gpu.runtime.channel` and :mod:`prefect_gpu.training.channel.wire` use, and is for measuring only: it
does not keep browsers out, as the real one does. Both ends call :func:`provide` before they import the channel.
"""

from __future__ import annotations

import asyncio
import enum
import importlib.util
import os
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

_HEAD = struct.Struct("!Ic")
_TEXT, _CLOSE = b"t", b"c"


class ConnectionClosed(Exception):
    """The other side is gone."""


class InvalidURI(Exception):
    """That is no address."""


class State(enum.Enum):
    """Of one end of a connection."""

    CONNECTING, OPEN, CLOSED = range(3)


class Opcode(enum.Enum):
    """Kinds of frames. Messages are never split here."""

    TEXT, CONT = range(2)


@dataclass(frozen=True)
class Frame:
    """One message."""

    opcode: Opcode
    data: bytes
    fin: bool = True


def parse_uri(url: str) -> SimpleNamespace:
    """Host and port of ``ws://host:port``."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise InvalidURI(url)
    return SimpleNamespace(host=parts.hostname, port=parts.port or 80, secure=parts.scheme == "wss")


def _packed(kind: bytes, content: bytes) -> bytes:
    return _HEAD.pack(len(content), kind) + content


def _closing(content: bytes) -> SimpleNamespace:
    return SimpleNamespace(code=int.from_bytes(content[:2], "big"), reason=content[2:].decode(errors="replace"))


class ClientProtocol:
    """The run's end, without a socket: bytes in and out."""

    def __init__(self, uri: Any, max_size: int) -> None:
        self.state = State.CONNECTING
        self.handshake_exc: Exception | None = None
        self.close_rcvd: Any = None
        self._in = b""
        self._out: list[bytes] = []
        self._events: list[Frame] = []

    def connect(self) -> None:
        """There is no handshake."""

    def send_request(self, request: None) -> None:
        """Be open at once."""
        self.state = State.OPEN

    def send_text(self, content: bytes) -> None:
        """Queue a message."""
        self._out.append(_packed(_TEXT, content))

    def send_close(self, code: int) -> None:
        """Queue a goodbye."""
        self._out.append(_packed(_CLOSE, code.to_bytes(2, "big")))
        self.state = State.CLOSED

    def data_to_send(self) -> list[bytes]:
        """What is to be written to the socket."""
        out, self._out = self._out, []
        return out

    def receive_data(self, data: bytes) -> None:
        """What was read from the socket."""
        self._in += data
        while len(self._in) >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._in)
            end = _HEAD.size + length
            if len(self._in) < end:
                return
            content, self._in = self._in[_HEAD.size : end], self._in[end:]
            if kind == _CLOSE:
                self.close_rcvd, self.state = _closing(content), State.CLOSED
            else:
                self._events.append(Frame(Opcode.TEXT, content))

    def receive_eof(self) -> None:
        """The socket's other end is closed."""
        self.state = State.CLOSED

    def events_received(self) -> list[Frame]:
        """The messages since the last call."""
        events, self._events = self._events, []
        return events


class ServerConnection:
    """The controller's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.remote_address = writer.get_extra_info("peername")

    async def recv(self) -> str:
        """The next message."""
        try:
            length, kind = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            content = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise ConnectionClosed from error
        if kind == _CLOSE:
            raise ConnectionClosed
        return content.decode()

    async def send(self, text: str) -> None:
        """Send a message."""
        if self._writer.is_closing():
            raise ConnectionClosed
        try:
            self._writer.write(_packed(_TEXT, text.encode()))
            await self._writer.drain()
        except OSError as error:
            raise ConnectionClosed from error

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Say why, and close."""
        if not self._writer.is_closing():
            self._writer.write(_packed(_CLOSE, code.to_bytes(2, "big") + reason.encode()))
            self._writer.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                yield await self.recv()
            except ConnectionClosed:
                return


class Server:
    """Listens, and knows its connections."""

    def __init__(self, handler: Callable[[ServerConnection], Awaitable[None]]) -> None:
        self._handler = handler
        self._connections: set[ServerConnection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, host, port)

    @property
    def sockets(self) -> Any:
        """Where it listens."""
        assert self._server is not None
        return self._server.sockets

    def close(self) -> None:
        """Listen no more, and end all connections."""
        assert self._server is not None
        self._server.close()
        for connection in tuple(self._connections):
            connection._writer.close()

    async def wait_closed(self) -> None:
        """Wait for that."""
        assert self._server is not None
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = ServerConnection(reader, writer)
        self._connections.add(connection)
        try:
            await self._handler(connection)
        finally:
            self._connections.discard(connection)
            writer.close()


async def serve(
    handler: Callable[[ServerConnection], Awaitable[None]], host: str, port: int, **unused: object
) -> Server:
    """A server that calls the handler for each connection."""
    server = Server(handler)
    await server.start(host, port)
    return server


_OFFERED: dict[str, tuple[object, ...]] = {
    "websockets": (),
    "websockets.asyncio": (),
    "websockets.asyncio.server": (Server, ServerConnection, serve),
    "websockets.client": (ClientProtocol,),
    "websockets.exceptions": (ConnectionClosed, InvalidURI),
    "websockets.frames": (Frame, Opcode),
    "websockets.protocol": (State,),
    "websockets.uri": (parse_uri,),
}


def provide() -> bool:
    """Put this in the place of ``websockets`` if that is not installed, or if ``GPU_KIT_PLAIN_CHANNEL`` is set.

    Returns:
        Whether the stand-in is in use.
    """
    loaded = sys.modules.get("websockets")
    wanted = bool(os.environ.get("GPU_KIT_PLAIN_CHANNEL"))
    if loaded is not None or (not wanted and importlib.util.find_spec("websockets") is not None):
        return getattr(loaded, "stands_in", False)
    for name, things in _OFFERED.items():
        module = ModuleType(name, __doc__)
        module.__path__ = []  # type: ignore[attr-defined]
        for thing in things:
            setattr(module, thing.__name__, thing)  # type: ignore[attr-defined]
        sys.modules[name] = module
    sys.modules["websockets"].stands_in = True  # type: ignore[attr-defined]
    return True
