"""One WebSocket connection driven by one thread, without polling.

``websockets.sync`` reads in a thread of its own and cannot wait for a message and for something to send at once;
a polling loop would wake up inside the training's time slices. The library's Sans-I/O layer has neither
problem: this module adds the socket.
"""

from __future__ import annotations

import select
import socket

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidURI
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from prefect_gpu.training.protocol import MAX_FRAME_BYTES


class WireClosed(OSError):
    """The connection is gone. ``code`` and ``reason`` are the other side's, if it gave any."""

    def __init__(self, code: int | None, reason: str) -> None:
        super().__init__(f"connection closed ({code}): {reason}" if code else "connection lost")
        self.code = code
        self.reason = reason


class Wire:
    """A connection to the controller; for use in one thread.

    Args:
        url: ``ws://host:port``.
        timeout: Seconds that connecting, and each send, may take.

    Raises:
        OSError: Nobody listens there, or no WebSocket server does.
    """

    def __init__(self, url: str, timeout: float = 5.0) -> None:
        try:
            uri = parse_uri(url)
        except InvalidURI as error:
            raise OSError(f"{url!r} is not a channel address: ws://host:port is one") from error
        if uri.secure:
            raise OSError(f"{url!r}: the channel speaks ws://, not wss://")
        self._frames: list[str] = []
        self._fragments: list[bytes] = []
        self.socket = socket.create_connection((uri.host, uri.port), timeout)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._protocol = ClientProtocol(uri, max_size=MAX_FRAME_BYTES)
            self._protocol.send_request(self._protocol.connect())
            self._flush()
            while self._protocol.state is State.CONNECTING:
                self._receive()
            if self._protocol.handshake_exc is not None:
                raise OSError(f"no channel at {url}: {self._protocol.handshake_exc}")
        except BaseException:
            self.socket.close()
            raise

    def send(self, text: str) -> None:
        """Send one text frame. Raises :class:`WireClosed` or ``OSError`` when the connection is gone."""
        if self._protocol.state is not State.OPEN:
            raise self._closed()
        self._protocol.send_text(text.encode())
        self._flush()

    def receive(self) -> list[str]:
        """Read what has arrived (call it when the socket is readable); an empty list if that was no whole frame."""
        if not self._frames:
            self._receive()
        frames, self._frames = self._frames, []
        # What came before the end is handed out first: it may acknowledge events.
        if not frames and self._protocol.state is not State.OPEN:
            raise self._closed()
        return frames

    def wait(self, seconds: float, wake: int | None = None) -> bool:
        """Wait until frames can be read (True), or something was written to the descriptor ``wake`` (False)."""
        if self._frames or self._protocol.state is not State.OPEN:
            return True
        poll = select.poll()  # select() cannot watch descriptors above 1023, which a training may well have
        poll.register(self.socket, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        return any(fd == self.socket.fileno() for fd, _ in poll.poll(max(0.0, seconds) * 1000))

    def close(self) -> None:
        """Say goodbye if possible, and close the socket. Never raises."""
        try:
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                self._flush()
        except OSError:
            pass
        finally:
            self.socket.close()

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._flush()  # pongs and the answer to a close frame
        for event in self._protocol.events_received():
            if not isinstance(event, Frame) or event.opcode not in (Opcode.TEXT, Opcode.CONT):
                continue
            self._fragments.append(bytes(event.data))
            if event.fin:
                self._frames.append(b"".join(self._fragments).decode())
                self._fragments.clear()
        if not data and self._protocol.state is State.CONNECTING:
            raise self._closed()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self.socket.sendall(data)
            else:  # the library's sign for "nothing more will be sent"
                self.socket.shutdown(socket.SHUT_WR)

    def _closed(self) -> WireClosed:
        received = self._protocol.close_rcvd
        return WireClosed(received.code, received.reason) if received else WireClosed(None, "")
