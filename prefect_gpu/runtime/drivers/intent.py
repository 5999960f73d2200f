"""Tells a run's program on another machine, or in a container, what the SIGTERM that follows means.

That is its cancellation, or nothing that it should tell Prefect of: the worker does.

Prefect's engine listens for that: it connects to a port of its own machine, says a token, and then takes one letter,
which it answers. (The port is the worker's where runs are processes; from elsewhere, that is out of reach.) Used by
the first process of the container, hence the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

# Files that the worker puts beside this one before it sends SIGTERM.
CANCELLED = "cancelled"
RELINQUISHED = "relinquished"

_HELLO = b"\x00PF"  # then two bytes: the version of the protocol, and what else is understood
_ANSWER = _HELLO + bytes((1, 0))  # the first version, which is all that is needed here
_LETTERS = {CANCELLED: b"c", RELINQUISHED: b"q"}
_ACKNOWLEDGED = b"a"
_STRANGER_S = 5.0  # for whoever connects to say the token
_PATIENCE_S = 1.0  # as Prefect's own side has


class Listener:
    """A port of this machine at which the run's program can be told. To be made before it is started."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._token = os.urandom(16).hex().encode()
        self._connection: socket.socket | None = None
        self._answered = threading.Event()
        self._asked = False

    def variables(self, port: str, token: str) -> dict[str, str]:
        """What the program finds in its environment, under these two names."""
        return {port: str(self._server.getsockname()[1]), token: self._token.decode()}

    def listen(self) -> None:
        """From now on the program may connect."""
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """In a fork that is not to listen."""
        self._server.close()

    def end(self) -> None:
        """The program has ended: close the port, and let the thread that listens there end."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # close() alone does not wake accept()
        self._server.close()

    def say(self, what: str) -> None:
        """Say what the signal means, and wait a moment until that is understood. Nothing if it does not listen.

        Args:
            what: :data:`CANCELLED` or :data:`RELINQUISHED`. What was said first counts.
        """
        connection = self._connection
        if self._asked or connection is None:
            return
        self._asked = True
        with contextlib.suppress(OSError):
            connection.sendall(_LETTERS[what])
            self._answered.wait(_PATIENCE_S)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # it has ended
                return
            with connection, contextlib.suppress(OSError):
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as said:
            connection.settimeout(_STRANGER_S)
            if said.readline(100).strip() != self._token:
                return
            connection.settimeout(None)
            self._connection = connection
            while letter := said.read(1):
                if letter == _ACKNOWLEDGED:
                    self._answered.set()
                elif letter == _HELLO[:1] and said.read(len(_ANSWER) - 1)[:2] == _HELLO[1:]:
                    connection.sendall(_ANSWER)
        self._connection = None
