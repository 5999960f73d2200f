"""Who keeps the notes of all runs: a small server, as a tracker of experiments would be."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Notes:
    """What the runs have said."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)

    def take(self, name: str, attempt: str, what: str) -> None:
        """Keep it, unless it was heard before: the answer may have been what was lost."""
        with self._lock:
            if (attempt, what) not in self._said[name]:
                self._said[name].append((attempt, what))

    def tries(self, name: str) -> int:
        """How often a run has begun."""
        with self._lock:
            return sum(what == "started" for _, what in self._said[name])

    def ends(self, name: str) -> list[str]:
        """The results with which its tries have ended."""
        with self._lock:
            return [what for _, what in self._said[name] if what != "started"]


@contextlib.contextmanager
def serve(address: str, notes: Notes) -> Iterator[str]:
    """Take notes at an address of this machine. Gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            notes.take(said["name"], said["attempt"], said["what"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
