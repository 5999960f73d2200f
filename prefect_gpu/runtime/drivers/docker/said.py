"""The output of a run's container: the run's own lines, and between them what the container's first process says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from prefect_gpu.runtime.drivers.output import LONGEST_LINE_BYTES, text_of


class Lines:
    """Takes a container's output apart.

    Args:
        mark: What the lines of the first process begin with. Before each, it begins a new line, which is not the run's.

    Example:
        >>> lines = Lines("mark")
        >>> list(lines.feed(b'\\nmark {"started": 1}\\none\\ntw'))
        [{'started': 1}, 'one']
        >>> list(lines.feed(b'o\\nmark {"ended": 2}\\n'))
        ['two', {'ended': 2}]
    """

    def __init__(self, mark: str) -> None:
        self._mark = f"{mark} ".encode()
        self._pending = b""
        self._empty = False  # the line before was empty; whose it was, the next one shows

    def feed(self, block: bytes) -> Iterator[str | dict[str, Any]]:
        """The lines that are complete now: those of the run as text, those of the first process as what they say."""
        *lines, self._pending = (self._pending + block).split(b"\n")
        if len(self._pending) > LONGEST_LINE_BYTES:
            lines.append(self._pending)
            self._pending = b""
        for line in lines:
            if line.startswith(self._mark):
                self._empty = False
                yield json.loads(line[len(self._mark) :])
                continue
            if self._empty:
                yield ""
            self._empty = not line
            if line:
                yield text_of(line)

    def finish(self) -> Iterator[str]:
        """What is left when nothing more will come."""
        if self._empty:
            yield ""
        if self._pending:
            yield text_of(self._pending)
        self._pending, self._empty = b"", False
