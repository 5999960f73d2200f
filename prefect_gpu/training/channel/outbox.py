"""Events on their way to the controller: numbered, kept until acknowledged, sent again after a reconnection."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect_gpu.training.protocol import MAX_FRAME_BYTES, PHASE

logger = logging.getLogger("prefect_gpu.training")

CROWDED = 32  # so many unacknowledged events mean that the controller is behind
MAX_EVENTS = 256  # above this, the oldest event that is no change of phase is given up


@dataclass
class _Event:
    seq: int
    kind: str
    frame: str
    sent_at: float | None = None  # monotonic; on the current connection


class Outbox:
    """A queue between the training's thread and the channel's; every method may be called in either."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[_Event] = deque()
        self._seq = 0

    def add(self, kind: str, data: dict[str, Any]) -> None:
        """Number an event and queue it. Its time is now."""
        with self._changed:
            self._seq += 1
            when = {"at": time.time(), "clock": time.monotonic()}
            frame = _encode({"type": "event", "seq": self._seq, **when, "kind": kind, "data": data})
            self._events.append(_Event(self._seq, kind, frame))
            if len(self._events) > MAX_EVENTS:
                for event in self._events:
                    if event.kind != PHASE:
                        self._events.remove(event)
                        break

    def unsent(self) -> list[str]:
        """The frames to send now, in order. They count as sent on this connection."""
        with self._changed:
            now = time.monotonic()
            events = [event for event in self._events if event.sent_at is None]
            for event in events:
                event.sent_at = now
            return [event.frame for event in events]

    def has_unsent(self) -> bool:
        """Whether :meth:`unsent` would return anything."""
        with self._changed:
            return bool(self._events) and self._events[-1].sent_at is None

    def acknowledge(self, seq: int) -> None:
        """Forget the events up to this number."""
        with self._changed:
            while self._events and self._events[0].seq <= seq:
                self._events.popleft()
            self._changed.notify_all()

    def resume(self, acked: int) -> None:
        """A new connection begins: what the controller has not handled is to be sent again."""
        with self._changed:
            for event in self._events:
                event.sent_at = None
        self.acknowledge(acked)

    def clear(self) -> None:
        """Give up: nobody will ever take these."""
        with self._changed:
            self._events.clear()
            self._changed.notify_all()

    def crowded(self) -> bool:
        """Whether the controller is so far behind that newer progress should wait and be merged."""
        return len(self._events) >= CROWDED

    def silent_for(self, now: float) -> float:
        """Seconds since the oldest unacknowledged event was sent on this connection."""
        with self._changed:
            if not self._events or self._events[0].sent_at is None:
                return 0.0
            return now - self._events[0].sent_at

    def wait_empty(self, timeout: float, give_up: Callable[[], bool]) -> bool:
        """Wait at most ``timeout`` seconds until every event is acknowledged; whether that came true."""
        with self._changed:
            self._changed.wait_for(lambda: not self._events or give_up(), timeout)
            return not self._events and not give_up()


def _encode(event: dict[str, Any]) -> str:
    frame = json.dumps(event, allow_nan=False, separators=(",", ":"))
    if len(frame) <= MAX_FRAME_BYTES:  # json.dumps escapes to ASCII: characters are bytes
        return frame
    # Only a user's own names and values can be so large; what the scheduler needs always fits.
    logger.warning("An event of kind %s is too large for the channel; its details are left out.", event["kind"])
    small = {key: value for key, value in event["data"].items() if isinstance(value, (int, float, bool))}
    if "phase" in event["data"]:
        small["phase"] = event["data"]["phase"]
    return json.dumps({**event, "data": small}, allow_nan=False, separators=(",", ":"))
