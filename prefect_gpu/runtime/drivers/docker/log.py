"""What a container has written, each piece once: an engine may end a log that is followed before its last lines."""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterator
from typing import Any


class ContainerLog:
    """Reads a container's log from where it was left, which is known by the engine's own times.

    Args:
        api: The engine's client.
        container: The container's id.
        since: Unix seconds: what was written before is left out; None: nothing is.
    """

    def __init__(self, api: Any, container: str, since: float | None) -> None:
        self._api, self._container, self._since = api, container, since
        self._last, self._of_last = b"", 0  # the time of what was read last, and how many pieces had it
        self.stream: Any = None

    def read(self, *, follow: bool, tail: int | str = "all") -> Iterator[bytes]:
        """What is new, in pieces of a line at most.

        Args:
            follow: Wait for more until the container has ended.
            tail: How many lines at most, of the last ones.

        Raises:
            Exception: What the Docker SDK raises, also where the connection breaks off: the SDK would take that for
                the log's end.
        """
        known, again = self._last, self._of_last
        since = calendar.timegm(time.strptime(known[:19].decode(), "%Y-%m-%dT%H:%M:%S")) if known else self._since
        self.stream = self._api.logs(
            self._container, stream=True, follow=follow, tail=tail, since=since, timestamps=True
        )
        for piece in self.stream._stream:
            at, _, written = piece.partition(b" ")
            if known and at <= known:
                if at < known:
                    continue
                again -= 1
                if again >= 0:
                    continue
            known = b""  # from here on all is new, whatever the engine's clock says
            self._of_last = self._of_last + 1 if at == self._last else 1
            self._last = at
            yield written
