"""The output of a run, read from the file that it writes to.

A run writes to a file and not to a pipe of the worker's, so that the end of the worker is no event in the
life of a run.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_BLOCK_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 64 * 1024
KEPT_BYTES = 16 << 20
"""Of a run's output, how much may wait to be repeated, and stays on the disk; what was before goes."""

_FASTEST_SECONDS, _SLOWEST_SECONDS = 0.05, 0.5
_TRIM_SECONDS = 5.0
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate(2)


def repeat(label: str, line: str) -> None:
    """Print a line of a run's output at once, also where the worker's own goes to a file or a pipe."""
    print(line, flush=True)


def tail_lines(path: Path, n: int = 20) -> tuple[str, ...]:
    """The last lines of a text file, oldest first, read from its end.

    Args:
        path: The file; one that is not there has no lines.
        n: How many lines at most. A line longer than 64 KiB comes cut at its beginning.
    """
    try:
        with path.open("rb") as file:
            start = file.seek(0, os.SEEK_END)
            data = b""
            while start > 0 and data.count(b"\n") <= n and len(data) < n * LONGEST_LINE_BYTES:
                step = min(_BLOCK_BYTES, start)
                start -= step
                file.seek(start)
                data = file.read(step) + data
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(text_of(line) for line in data.removesuffix(b"\n").split(b"\n")[-n:] if data) if n else ()


class OutputFollower(abc.ABC):
    """Takes what is added to a file, block by block, until told that nothing more will come.

    Args:
        path: The file; it need not be there yet.
        offset: Where to begin, in bytes.
    """

    block_bytes = _BLOCK_BYTES

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset
        self._complete = asyncio.Event()

    async def run(self) -> None:
        """Follow the file; returns after :meth:`finish`, with everything taken."""
        pause = _FASTEST_SECONDS
        while True:
            last = self._complete.is_set()  # asked before reading: what was written before it is read below
            if await self._catch_up():
                pause = _FASTEST_SECONDS
            elif last:
                return
            else:
                pause = min(pause * 1.5, _SLOWEST_SECONDS)
            if not last:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._complete.wait(), pause)

    def finish(self) -> None:
        """Say that the file is complete."""
        self._complete.set()

    @abc.abstractmethod
    async def take(self, block: bytes) -> None:
        """The next block."""

    @abc.abstractmethod
    async def leave_out(self, size: int) -> None:
        """So many bytes came faster than they could be taken, and may be gone from the disk."""

    async def _catch_up(self) -> bool:
        """Take what there is now. Returns whether there was anything."""
        try:
            file = self._path.open("rb", buffering=0)
        except FileNotFoundError:
            return False
        any_read = False
        with file:
            file.seek(self._offset)
            while block := file.read(self.block_bytes):
                any_read = True
                if (behind := os.fstat(file.fileno()).st_size - self._offset) > KEPT_BYTES:
                    left_out = behind - KEPT_BYTES // 2
                    self._offset += left_out
                    file.seek(self._offset)
                    await self.leave_out(left_out)
                    continue
                self._offset += len(block)
                await self.take(block)
                await asyncio.sleep(0)  # a run that writes without end must not keep others from their work
        return any_read


class OutputTail(OutputFollower):
    """Repeats what is added to a file, line by line.

    Args:
        path, offset: See :class:`OutputFollower`.
        echo: Called with each line, without its end. Of a line that overwrote itself (a progress bar) only
            what it came to is repeated.
    """

    def __init__(self, path: Path, offset: int, echo: Callable[[str], None]) -> None:
        super().__init__(path, offset)
        self._echo = echo
        self._pending = b""

    async def run(self) -> None:
        """See :meth:`OutputFollower.run`. A last line without an end is repeated, too."""
        await super().run()
        if self._pending:
            self._echo(text_of(self._pending))
            self._pending = b""

    async def take(self, block: bytes) -> None:
        *lines, self._pending = (self._pending + block).split(b"\n")
        for line in lines:
            self._echo(text_of(line))
        if len(self._pending) > LONGEST_LINE_BYTES:
            self._echo(text_of(self._pending))
            self._pending = b""

    async def leave_out(self, size: int) -> None:
        self._pending = b""
        self._echo(f"... {size >> 20} MiB of output are left out here: it came faster than it could be repeated ...")


async def keep_small(path: Path) -> None:
    """Free the disk of what a run has written long ago, again and again until cancelled.

    Args:
        path: The file that the run writes to; it keeps its size, and its beginning becomes a hole. On a file system
            that knows no holes, it stays as large as it is.
    """
    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(trim, path)


def trim(path: Path) -> None:
    """Let only the last 32 MiB of a file take room on the disk.

    Raises:
        OSError: That could not be done.
    """
    handle = os.open(path, os.O_WRONLY)
    try:
        seen = os.fstat(handle)
        if seen.st_blocks * 512 <= 3 * KEPT_BYTES:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_long(seen.st_size - 2 * KEPT_BYTES)
        if libc.fallocate(handle, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(0), size):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(handle)


def text_of(line: bytes) -> str:
    """A line as people see it: of one that overwrote itself, only what it came to."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
