"""An Engine on another machine, by ssh: as with Docker's own client, ``docker system dial-stdio`` runs there.

The SDK has this, too, but needs paramiko for it even where that is not used, starts a program for each request, and
gives it pipes: they know no time-out, cannot be closed while somebody reads, and what ssh says of its trouble is lost.
Here each connection is a program ``ssh`` with a socket for its input and output. Connections are kept for the next
request, and whatever takes the end of one for an end of the connection also ends the program.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any
from urllib.parse import unquote, urlsplit

import requests.adapters
import urllib3
import urllib3.connection

_AT_ONCE = 4  # from ten on that are not logged in yet, an sshd turns some away by chance (MaxStartups)
_IDLE = 4  # connections that are kept for the next request: each is a process here and two or three there
_ALIVE_S = 15  # between questions to an sshd that says nothing; the third without an answer ends the connection
_LAST_WORDS_S = 5.0
_SAID_BYTES = 1000


class SshError(OSError):
    """There is no connection. The message is what ssh, the shell or Docker's client over there said."""


def command(url: str, timeout_s: float, key: str | None = None, known_hosts: str | None = None) -> list[str]:
    """The program that connects to an Engine.

    Args:
        url: ``ssh://user@host:port``; without user or port, ``~/.ssh/config`` says them. With a path, the Engine's
            socket there; else it is where Docker's client on that machine looks for it.
        timeout_s: Half of it, in whole seconds, is for the connection.
        key: File with the private key; None: as for any ``ssh`` of this user.
        known_hosts: File with the host keys that are accepted; None: likewise.

    Raises:
        ValueError: The URL is wrong.
    """
    parts = urlsplit(url)
    if parts.password:
        raise ValueError("a password does not belong into the address: ssh logs in with a key")
    user, port = parts.username, parts.port
    host = parts.netloc.rpartition("@")[2]  # not what urlsplit makes of it: it may be a name in ~/.ssh/config
    host = (host.rpartition(":")[0] if port is not None else host).strip("[]")
    if not host:
        raise ValueError(f"{url!r} names no host: ssh://user@host or ssh://user@host:port")
    options = {
        "BatchMode": "yes",  # there is nobody to ask
        "ConnectTimeout": str(max(1, math.floor(timeout_s / 2))),  # it says more than we could after the whole time
        "ControlMaster": "no",  # one that others depend on would end with its own connection
        "LogLevel": "ERROR",  # no banners
        "ServerAliveCountMax": "3",
        "ServerAliveInterval": str(_ALIVE_S),
    }
    if known_hosts is not None:
        options |= {"UserKnownHostsFile": f'"{known_hosts}"', "StrictHostKeyChecking": "yes"}
    if key is not None:
        options["IdentitiesOnly"] = "yes"
    words = ["ssh", "-T", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]
    words += ["-i", key] if key is not None else []
    words += ["-l", unquote(user)] if user else []
    words += ["-p", str(port)] if port is not None else []
    there = ["docker", *(["--host", f"unix://{unquote(parts.path)}"] if parts.path.strip("/") else ())]
    return [*words, "--", host, shlex.join([*there, "system", "dial-stdio"])]


class Dialler:
    """Starts the programs of one Engine's connections, and ends them. Safe to use from several threads.

    Args:
        words: See :func:`command`.
        timeout_s: Seconds after which a connection is given up.
    """

    def __init__(self, words: list[str], timeout_s: float) -> None:
        self._words, self._timeout_s = words, timeout_s
        self._few = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def dial(self) -> socket.socket:
        """A connection, once the Engine has answered on it: only that shows that it is one.

        Raises:
            SshError: There is none.
        """
        if not self._few.acquire(timeout=self._timeout_s):
            raise SshError(f"no answer within {self._timeout_s:g} s, nor to those who asked before")
        try:
            with tempfile.TemporaryFile() as said:  # a pipe that nobody reads is full some day
                line = self._start(said)
                try:
                    line.settimeout(self._timeout_s)
                    _greet(line)
                except (OSError, http.client.HTTPException) as error:
                    raise SshError(self._reason(line, error, said)) from error
                return line
        finally:
            self._few.release()

    def close(self) -> None:
        """End all, and start no more."""
        with self._lock:
            self._closed = True
            left, self._running = self._running, set()
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(_LAST_WORDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, said: IO[bytes]) -> Line:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.closing(ours), self._lock:
            if self._closed:
                raise SshError("the connection to the engine has been closed")
            self._running = {process for process in self._running if process.poll() is None}
            try:
                process = subprocess.Popen(
                    self._words,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=said,
                    env=_environment(os.environ),
                    start_new_session=True,  # Ctrl-C is for the worker, which still has to say what is to stop
                )
            except FileNotFoundError:
                raise SshError("there is no program `ssh` on the worker's machine") from None
            self._running.add(process)
            return Line(ours.detach(), process)

    def _reason(self, line: Line, error: Exception, said: IO[bytes]) -> str:
        """Why there is no connection, after the program's end."""
        late = isinstance(error, TimeoutError)
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(subprocess.TimeoutExpired):
            line.process.wait(0 if late else _LAST_WORDS_S)
        line.close()
        size = os.fstat(said.fileno()).st_size
        words = os.pread(said.fileno(), _SAID_BYTES, max(0, size - _SAID_BYTES)).decode(errors="replace")
        told = " ".join(words.split()).rstrip(".")
        if told:
            return told
        if late:
            return f"no answer within {self._timeout_s:g} s"
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            return f"something over there says {str(error).strip()!r:.100} before the engine says anything"
        return f"`ssh` ended with code {line.process.poll()} and said nothing"


class Line(socket.socket):
    """Our end of a connection. The program ends with it, whoever held it last."""

    def __init__(self, fileno: int, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=fileno)
        self.process = process

    def close(self) -> None:
        super().close()
        if self.fileno() < 0:  # and not only promised, while a response is still being read
            self.process.terminate()
            self.process.poll()


def _greet(line: Line) -> None:
    """Ask the Engine for a sign of life. That it answers is enough, be it a refusal."""
    connection = http.client.HTTPConnection("localhost")
    connection.sock = line
    connection.request("GET", "/_ping")
    connection.getresponse().read()


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """What ssh gets of our environment: the libraries of a Python's environment are not those of the system's ssh."""
    return {name: value for name, value in ours.items() if name != "LD_LIBRARY_PATH"}


class _Connection(urllib3.connection.HTTPConnection):
    def __init__(self, dialler: Dialler) -> None:
        super().__init__("localhost")
        self._dialler = dialler

    def _new_conn(self) -> socket.socket:
        return self._dialler.dial()


class _Pool(urllib3.HTTPConnectionPool):
    def __init__(self, dialler: Dialler, most: int) -> None:
        super().__init__("localhost", maxsize=most)
        self._dialler = dialler

    def _new_conn(self) -> Any:
        self.num_connections += 1
        return _Connection(self._dialler)

    def _put_conn(self, conn: Any) -> None:
        if conn is not None and sum(1 for _ in self._idle()) >= _IDLE:
            conn.close()  # it connects again when it is used again
        super()._put_conn(conn)

    def _idle(self) -> Iterator[Any]:
        waiting = getattr(self.pool, "queue", ())
        return (one for one in tuple(waiting) if one is not None and one.sock is not None)


class SshAdapter(requests.adapters.HTTPAdapter):
    """Sends requests to an Engine by ssh.

    Args:
        dialler: Makes the connections, and is closed with this.
        most: Connections at once that are accounted for; more are made, if need be.
    """

    def __init__(self, dialler: Dialler, most: int) -> None:
        super().__init__()
        self._dialler, self._pool = dialler, _Pool(dialler, most)

    def get_connection_with_tls_context(self, request: Any, verify: Any, proxies: Any = None, cert: Any = None) -> Any:
        """The Engine's connections, whatever the request."""
        return self._pool

    def get_connection(self, url: Any, proxies: Any = None) -> Any:
        """As older versions of requests ask for it."""
        return self._pool

    def request_url(self, request: Any, proxies: Any) -> str:
        """Only the path: there is no proxy on the way."""
        return str(request.path_url)

    def close(self) -> None:
        """Close the connections, those in use, too."""
        super().close()
        self._pool.close()
        self._dialler.close()
