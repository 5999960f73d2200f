"""When each node has how many devices to give: on plain numbers.

A plan gives a job so many devices of one node, or of several, from one moment to another without a break.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
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
        first = max(self.now, asked.from_s)
        if by_s - asked.lasts_s < first:
            return None
        if asked.instances == 1:
            ends = {node: self._latest_on(node, asked, by_s) for node in asked.nodes}
            known = {node: end for node, end in ends.items() if end is not None}
            if not known:
                return None
            node = max(known, key=lambda name: known[name])  # of equals the first
            return Planned(known[node] - asked.lasts_s, known[node], {node: asked.devices})
        # The end is what is compared: a start to which a length is added need not give the end that it was made from.
        moments = {by_s, *(time for time in self._times(asked) if time < by_s)}
        starts = ((end - asked.lasts_s, end) for end in sorted(moments, reverse=True))
        return self._first_at(asked, (*(one for one in starts if one[0] >= first), (first, first + asked.lasts_s)))

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
        moments = sorted({first, *(time for time in self._times(asked) if time > first)})
        return self._first_at(asked, ((start, start + asked.lasts_s) for start in moments))

    # -- on one node ------------------------------------------------------------------------------------------------

    def _latest_on(self, node: str, asked: Asked, by_s: float) -> float | None:
        """When the latest plan on a node ends."""
        profile = self._nodes.get(node)
        if profile is None or asked.nodes[node] < asked.devices:
            return None
        end, times, free, first = by_s, profile.times, profile.free, max(self.now, asked.from_s)
        while (start := end - asked.lasts_s) >= first:
            at = bisect_left(times, end) - 1  # the last piece that begins before the end
            while at >= 0 and free[at] >= asked.devices and times[at] > start:
                at -= 1
            if at < 0 or free[at] >= asked.devices:
                return end
            end = times[at]
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

    def _first_at(self, asked: Asked, moments: Iterable[tuple[float, float]]) -> Planned | None:
        """The plan from the first of these moments, (start, end), at which there is room for all instances."""
        for number, (start, end) in enumerate(moments):
            if number == _MOST_MOMENTS:
                break
            found: dict[str, int] = {}
            left = asked.instances
            room = {
                node: min(self.least(node, start, end), most) // asked.devices for node, most in asked.nodes.items()
            }
            for node in sorted(room, key=lambda name: -room[name]):
                count = min(left, room[node])
                if count:
                    found[node] = count * asked.devices
                    left -= count
                if not left:
                    return Planned(start, end, found)
        return None


def _least(profile: Profile, start: float, end: float) -> int:
    times, free = profile.times, profile.free
    at = max(bisect_right(times, start) - 1, 0)
    least = free[at]
    while at + 1 < len(times) and times[at + 1] < end:
        at += 1
        least = min(least, free[at])
    return least
