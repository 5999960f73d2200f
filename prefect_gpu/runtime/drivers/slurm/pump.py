"""Sends what a run writes from a node whose files the worker does not see, as fast as the worker takes it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

from prefect_gpu.runtime.drivers.output import OutputFollower

_ROOM_S = 0.02


class OutputPump(OutputFollower):
    """See the module.

    Args:
        path: What the run writes to.
        send: Called with the place of a piece in the output, and the piece as text.
        crowded: Whether so much waits for the worker that more must wait here.
    """

    block_bytes = 48 * 1024

    def __init__(self, path: Path, send: Callable[[int, str], None], crowded: Callable[[], bool]) -> None:
        super().__init__(path)
        self._send, self._crowded = send, crowded
        self._sent = 0

    async def take(self, block: bytes) -> None:
        while self._crowded():  # noqa: ASYNC110 -- it is the worker that takes it
            await asyncio.sleep(_ROOM_S)
        self._send(self._sent, base64.b64encode(block).decode())
        self._sent += len(block)

    async def leave_out(self, size: int) -> None:
        words = f"\n... {size >> 20} MiB of output are left out: it came faster than it could be sent ...\n"
        await self.take(words.encode())
