"""Sends what a run writes from a node whose files the worker does not see, as fast as the worker takes it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from prefect_gpu.runtime.drivers.output import KEPT_BYTES

_BLOCK_BYTES = 48 * 1024
_FASTEST_S, _SLOWEST_S = 0.05, 0.5
_ROOM_S = 0.02
_LEFT_OUT = "\n... {} MiB of output are left out here: it came faster than it could be sent ...\n"


class OutputPump:
    """See the module.

    Args:
        path: What the run writes to.
        send: Called with the place of a piece in the output, and the piece as text.
        crowded: Whether so much waits for the worker that more must wait here.
    """

    def __init__(self, path: Path, send: Callable[[int, str], None], crowded: Callable[[], bool]) -> None:
        self._path, self._send, self._crowded = path, send, crowded
        self._read = self._sent = 0
        self._complete = asyncio.Event()

    def finish(self) -> None:
        """Say that nothing more will be written."""
        self._complete.set()

    async def run(self) -> None:
        """Send until everything was, after :meth:`finish`."""
        pause = _FASTEST_S
        while True:
            last = self._complete.is_set()  # asked before reading: what was written before it is read below
            if await self._catch_up():
                pause = _FASTEST_S
            elif last:
                return
            else:
                pause = min(pause * 1.5, _SLOWEST_S)
            if not last:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._complete.wait(), pause)

    async def _catch_up(self) -> bool:
        try:
            file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        any_read = False
        with file:
            file.seek(self._read)
            while block := file.read(_BLOCK_BYTES):
                any_read = True
                behind = os.fstat(file.fileno()).st_size - self._read
                if behind > KEPT_BYTES:  # what is further back may be gone from the disk
                    left_out = behind - KEPT_BYTES // 2
                    self._read += left_out
                    file.seek(self._read)
                    words = (
                        f"\n... {left_out >> 20} MiB of output are left out: it came faster than it could be sent ...\n"
                    )
                    await self._hand_on(words.encode())
                    continue
                self._read += len(block)
                await self._hand_on(block)
        return any_read

    async def _hand_on(self, block: bytes) -> None:
        while self._crowded():  # noqa: ASYNC110 -- it is the worker that takes it
            await asyncio.sleep(_ROOM_S)
        self._send(self._sent, base64.b64encode(block).decode())
        self._sent += len(block)
        await asyncio.sleep(0)
