"""When each node has how many devices to give: on plain numbers.

A plan gives a job so many devices of one node, or of several, from one moment to another without a break.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prefect_gpu.scheduling.elastic.promises import Profile

_MOST_MOMENTS = 64  # at which a start of a job on several nodes is looked for


@dataclass(frozen=True)
class Asked:
    """What a job needs: so many instances, each with so many devices of one node, for so many seconds.

    Attributes:
        nodes: Where it may be; by node, how many of the devices there are large enough for it.
        from_s: When it may start at the earliest.
    """

    instances: int
    devices: int
    lasts_s: float
    nodes: Mapping[str, int]
    from_s: float = -math.inf


@dataclass(frozen=True)
class Planned:
    """From when until when a job has how many devices of which nodes."""

    start: float
    end: float
    devices: Mapping[str, int]


class Gantt:
    """Nodes with what is given away of their devices.

    Args:
        devices: How many each node has.
        now: From when on.
    """

    def __init__(self, devices: Mapping[str, int], now: float) -> None:
        self.now = now
        self._nodes = {node: Profile(count, now) for node, count in devices.items()}

    def take(self, planned: Planned, sign: int = 1) -> None:
        """These devices are given away; with sign -1, they are not any more."""
        for node, count in planned.devices.items():
            if node in self._nodes:
                self._nodes[node].take([(max(planned.start, self.now), planned.end, count)], sign)

    def overfull(self) -> list[str]:
        """Nodes that have given away more than they have, at some time."""
        return [node for node, profile in self._nodes.items() if min(profile.free) < 0]

    def least(self, node: str, start: float, end: float) -> int:
        """Devices of a node that are free all the time between two moments."""
        profile = self._nodes.get(node)
        return 0 if profile is None else _least(profile, start, end)

    def latest(self, asked: Asked, by_s: float) -> Planned | None:
        """The plan that starts latest and is done by then; None: there is none."""
        last = by_s - asked.lasts_s
        if last < max(self.now, asked.from_s):
            return None
        if asked.instances == 1:
            starts = {node: self._latest_on(node, asked, last) for node in asked.nodes}
            known = {node: start for node, start in starts.items() if start is not None}
            if not known:
                return None
            node = max(known, key=lambda name: known[name])  # of equals the first
            return Planned(known[node], known[node] + asked.lasts_s, {node: asked.devices})
        first = max(self.now, asked.from_s)
        ends = (time - asked.lasts_s for time in self._times(asked))
        moments = {first, last, *(start for start in ends if first <= start < last)}
        return self._first_at(asked, sorted(moments, reverse=True))

    def earliest(self, asked: Asked) -> Planned | None:
        """The plan that is done first; None: it never fits."""
        if asked.instances == 1:
            starts = {node: self._earliest_on(node, asked) for node in asked.nodes}
            known = {node: start for node, start in starts.items() if start is not None}
            if not known:
                return None
            node = min(known, key=lambda name: known[name])
            return Planned(known[node], known[node] + asked.lasts_s, {node: asked.devices})
        first = max(self.now, asked.from_s)
        return self._first_at(asked, sorted({first, *(time for time in self._times(asked) if time > first)}))

    # -- on one node ------------------------------------------------------------------------------------------------

    def _latest_on(self, node: str, asked: Asked, last: float) -> float | None:
        profile = self._nodes.get(node)
        if profile is None or asked.nodes[node] < asked.devices:
            return None
        start, times, free = last, profile.times, profile.free
        while start >= max(self.now, asked.from_s):
            at = bisect_right(times, start + asked.lasts_s) - 1
            if times[at] >= start + asked.lasts_s:
                at -= 1
            blocked = None
            while at >= 0 and (times[at + 1] if at + 1 < len(times) else math.inf) > start:
                if free[at] < asked.devices:
                    blocked = at
                    break
                at -= 1
            if blocked is None:
                return start
            start = times[blocked] - asked.lasts_s
        return None

    def _earliest_on(self, node: str, asked: Asked) -> float | None:
        profile = self._nodes.get(node)
        if profile is None or asked.nodes[node] < asked.devices:
            return None
        start, times, free = max(self.now, asked.from_s), profile.times, profile.free
        at = max(bisect_right(times, start) - 1, 0)
        while at < len(times):
            if free[at] < asked.devices:
                start = times[at + 1] if at + 1 < len(times) else math.inf
                if start == math.inf:
                    return None
            elif (times[at + 1] if at + 1 < len(times) else math.inf) >= start + asked.lasts_s:
                return start
            at += 1
        return start

    # -- on several -------------------------------------------------------------------------------------------------

    def _times(self, asked: Asked) -> set[float]:
        profiles = (self._nodes[node] for node in asked.nodes if node in self._nodes)
        return {time for profile in profiles for time in profile.times if time > self.now}

    def _first_at(self, asked: Asked, moments: Iterable[float]) -> Planned | None:
        """The plan at the first of these moments at which there is room for all instances."""
        for number, start in enumerate(moments):
            if number == _MOST_MOMENTS:
                break
            found: dict[str, int] = {}
            left = asked.instances
            room = {
                node: min(self.least(node, start, start + asked.lasts_s), most) // asked.devices
                for node, most in asked.nodes.items()
            }
            for node in sorted(room, key=lambda name: -room[name]):
                count = min(left, room[node])
                if count:
                    found[node] = count * asked.devices
                    left -= count
                if not left:
                    return Planned(start, start + asked.lasts_s, found)
        return None


def _least(profile: Profile, start: float, end: float) -> int:
    times, free = profile.times, profile.free
    at = max(bisect_right(times, start) - 1, 0)
    least = free[at]
    while at + 1 < len(times) and times[at + 1] < end:
        at += 1
        least = min(least, free[at])
    return least
