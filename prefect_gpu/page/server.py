"""Serves the page from within the worker's event loop, and leaves a note where others on this machine find it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import uvicorn

from prefect_gpu.page.app import Metrics, Source, page_app

_NEXT_PORTS = 20  # several workers on one machine have their pages side by side


class PageServer:
    """The page of one worker.

    Args:
        source: What it shows.
        host: Address to listen on.
        port: Port to listen on; if it is taken, one of the next, else any. 0 takes a free one.
        note: File that tells :func:`pages` where the page is.
        pool: Name of the worker's pool.
        token: What one must know to read it; empty: nothing.
        metrics: See :func:`.page_app`.

    Attributes:
        url: Its address.
        entry: The address that lets a reader in, with the token.
        unnoted: Why the note could not be left; None: it was.
    """

    def __init__(
        self,
        source: Source,
        *,
        host: str,
        port: int,
        note: Path,
        pool: str,
        token: str = "",
        metrics: Metrics | None = None,
    ) -> None:
        self._source, self._host, self._port, self._note, self._pool = source, host, port, note, pool
        self._token, self._metrics = token, metrics
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = self.entry = ""
        self.unnoted: OSError | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address is not one of this machine's.
        """
        listening = _listen(self._host, self._port)
        port = listening.getsockname()[1]
        config = uvicorn.Config(
            page_app(self._source, names=[self._host], token=self._token, metrics=self._metrics),
            log_config=None,
            access_log=False,
            log_level=logging.WARNING,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[listening]), name="page")
        # "Every address" is none to visit.
        shown = "localhost" if self._host in ("", "0.0.0.0", "::") else self._host
        self.url = f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
        self.entry = f"{self.url}/?{urlencode({'token': self._token})}" if self._token else self.url
        try:
            self._leave_note()
        except OSError as error:  # a full disk: who knows the address can read the page all the same
            self.unnoted = error

    def _leave_note(self) -> None:
        note = {
            "pool": self._pool,
            "url": self.url,
            "pid": os.getpid(),
            **({"token": self._token} if self._token else {}),
        }
        self._note.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._note.with_suffix(".tmp")
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600)
        temporary.write_text(json.dumps(note))
        temporary.replace(self._note)

    async def close(self) -> None:
        """Listen no more, and remove the note."""
        if self._server is None or self._task is None:
            return
        with contextlib.suppress(OSError):
            self._note.unlink(missing_ok=True)
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)


class _Server(uvicorn.Server):
    """Signals are the worker's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the handlers as they are."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error: OSError | None = None
    for candidate in [*range(port, min(port + _NEXT_PORTS, 65_536)), 0] if port else [0]:
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((host, candidate))
            opened.listen(128)
        except OSError as refused:
            opened.close()
            error = refused
            continue
        return opened
    assert error is not None
    raise error


def pages(folder: Path, pool: str | None = None) -> list[dict[str, str]]:
    """The pages that workers of this machine have left a note of; one that was killed leaves its note behind.

    Args:
        folder: Where the notes lie.
        pool: Only of that pool.

    Returns:
        Of each ``pool``, ``url``, and ``token`` if it wants one, by name of the pool.
    """
    found = []
    for path in _notes(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(path.read_text())
            if pool in (None, note["pool"]):
                known = {"pool": str(note["pool"]), "url": str(note["url"])}
                found.append(known | ({"token": str(note["token"])} if "token" in note else {}))
    return found


def unreadable(folder: Path) -> Path | None:
    """What this user may not read of the notes of pages: their folder, or one of them; None: all may be read."""
    try:
        return next((path for path in sorted(folder.iterdir()) if not os.access(path, os.R_OK)), None)
    except PermissionError:
        return folder
    except OSError:  # nothing is there
        return None


def _notes(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob("*.json"))
    except OSError:  # it lies below a folder that this user may not look into
        return []
