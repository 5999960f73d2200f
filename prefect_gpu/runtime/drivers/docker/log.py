"""What a container has written, each piece once: an engine may end a log that is followed before its last lines."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator
from typing import Any

_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")  # what each piece of a container's begins with


class ContainerLog:
    """Reads a container's log from where it was left, which is known by the engine's own times.

    Args:
        api: The engine's client.
        container: The container's id.
        since: Unix seconds: what was written before is left out; None: nothing is.

    Attributes:
        complains: Whether the engine had something to say itself at the last reading: that it cannot read on.
    """

    def __init__(self, api: Any, container: str, since: float | None) -> None:
        self._api, self._container, self._since = api, container, since
        self._last, self._of_last = b"", 0  # the time of what was read last, and how many pieces had it
        self.stream: Any = None
        self.complains, self._complaint = False, b""

    def read(self, *, follow: bool, tail: int | str = "all") -> Iterator[bytes]:
        """What is new, in pieces of a line at most. What the engine itself has to say is among it, once.

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
        self.complains = False
        for piece in self.stream._stream:
            at, _, written = piece.partition(b" ")
            if not _TIME.match(at):  # "Error grabbing logs: ..."
                self.complains = True
                if piece != self._complaint:
                    self._complaint = piece
                    yield piece
                continue
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
