"""Whether a container's node is cut off from everybody who could know of its run; then the run must not go on there.

The Swarm gives up a node that it does not hear from, and the run starts again elsewhere, from its checkpoint. The old
one must be over by then: what it would still write or send, once it is reachable again, nobody expects any more. So the
container's first process makes contact with the worker, or else with any other node of the Swarm, and has less patience
than the Swarm has.

This runs in the container: the standard library only.
"""

from __future__ import annotations

import json
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Address = tuple[str, int]

FILE = "contacts.json"  # {"addresses": [[host, port], ...], "patience_s": 10.0}; written again when nodes join or leave
CHANNEL_FILE = "channel.json"  # {"url": "ws://host:port"} of a worker that has taken over
_TRIES = 8  # within its patience


class Fence:
    """Watches over contact with the outside.

    A connection that is refused is contact: it was the host that refused it. Nothing is concluded before there was
    contact once, as a container may have a network from which nobody is ever reached.

    Args:
        folder: Where :data:`FILE` and :data:`CHANNEL_FILE` are.
        channel: The worker's channel when the run began, ``ws://host:port``.
        reach: Whether an address is reached within so many seconds.
        clock: Seconds that pass.
        sleep: Waits so many seconds.
    """

    def __init__(
        self,
        folder: str,
        channel: str = "",
        *,
        reach: Callable[[Address, float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._folder, self._channel = folder, channel
        self._reach, self._clock, self._sleep = reach or reached, clock, sleep

    def wait(self) -> float:
        """Return once the node has been cut off for longer than is bearable, or stood still for as long.

        Returns:
            Seconds since the last contact. Does not return at all where nobody has said whom to ask.
        """
        last = None
        while True:
            addresses, patience_s = self._contacts()
            pause_s = patience_s / _TRIES
            asked = self._clock()
            if not addresses:
                last = None
            elif last is not None and asked - last > patience_s:
                return asked - last
            elif self._any(addresses, pause_s):
                last = asked
            self._sleep(max(0.0, asked + pause_s - self._clock()))

    def _any(self, addresses: Sequence[Address], within_s: float) -> bool:
        """Whether anybody is reached: the worker, most of the time, so that the others are seldom asked."""
        end = self._clock() + within_s
        for number, address in enumerate(addresses):
            left_s = end - self._clock()
            if left_s <= 0:
                break
            if self._reach(address, left_s / (len(addresses) - number)):
                return True
        return False

    def _contacts(self) -> tuple[list[Address], float]:
        told = _read(f"{self._folder}/{FILE}")
        patience_s = float(told.get("patience_s", 10.0))
        nodes = [(str(host), int(port)) for host, port in told.get("addresses", ())]
        if not nodes:
            return [], patience_s
        url = _read(f"{self._folder}/{CHANNEL_FILE}").get("url") or self._channel
        host, _, port = str(url).rpartition("/")[2].rpartition(":")
        return ([(host.strip("[]"), int(port))] if port.isdigit() else []) + nodes, patience_s


def reached(address: Address, within_s: float) -> bool:
    """Whether somebody answers at an address, if only by refusing."""
    try:
        socket.create_connection(address, timeout=within_s).close()
    except ConnectionRefusedError:
        return True
    except (OSError, UnicodeError):  # no route, no answer, no such name
        return False
    return True


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path) as file:
            told = json.load(file)
    except (OSError, ValueError):  # not there, or being written
        return {}
    return told if isinstance(told, dict) else {}
