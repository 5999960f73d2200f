"""When there are how many devices to give: on plain numbers.

Devices of one node that are alike make a group. A plan gives a job so many devices of one group, or of several, from
one moment to another without a break.
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
        groups: Where it may be; by group, how many of the devices there are large enough for it.
        from_s: When it may start at the earliest.
        mixed: Groups that are on one node, of those nodes that have several of these.
    """

    instances: int
    devices: int
    lasts_s: float
    groups: Mapping[str, int]
    from_s: float = -math.inf
    mixed: tuple[tuple[str, ...], ...] = ()

    def by_node(self) -> list[tuple[str, ...]]:
        """The groups of each node."""
        several = {group for groups in self.mixed for group in groups}
        return [*self.mixed, *((group,) for group in self.groups if group not in several)]


@dataclass(frozen=True)
class Planned:
    """From when until when a job has how many devices of which groups."""

    start: float
    end: float
    devices: Mapping[str, int]


class Gantt:
    """Groups of devices with what is given away of them.

    Args:
        devices: How many each group has.
        now: From when on.
    """

    def __init__(self, devices: Mapping[str, int], now: float) -> None:
        self.now = now
        self._sizes = dict(devices)
        self._groups = {group: Profile(count, now) for group, count in devices.items()}

    def take(self, planned: Planned, sign: int = 1) -> None:
        """These devices are given away; with sign -1, they are not any more."""
        for group, count in planned.devices.items():
            if group in self._groups:
                self._groups[group].take([(max(planned.start, self.now), planned.end, count)], sign)

    def overfull(self) -> list[str]:
        """Groups that have given away more than they have, at some time."""
        return [group for group, profile in self._groups.items() if min(profile.free) < 0]

    def has(self, planned: Planned) -> bool:
        """Whether there is any device of each of its groups."""
        return planned.devices.keys() <= self._groups.keys()

    def size(self, group: str) -> int:
        """How many devices a group has, free or not; 0 if there is no such group."""
        return self._sizes.get(group, 0)

    def least(self, group: str, start: float, end: float) -> int:
        """Devices of a group that are free all the time between two moments."""
        profile = self._groups.get(group)
        return 0 if profile is None else _least(profile, start, end)

    def latest(self, asked: Asked, by_s: float) -> Planned | None:
        """The plan that starts latest and is done by then; None: there is none."""
        first = max(self.now, asked.from_s)
        if by_s - asked.lasts_s < first:
            return None
        if asked.instances == 1:
            ends = {group: self._latest_on(group, asked, by_s) for group in asked.groups}
            known = {group: end for group, end in ends.items() if end is not None}
            if known:
                group = max(known, key=lambda name: known[name])  # of equals the first
                return Planned(known[group] - asked.lasts_s, known[group], {group: asked.devices})
            if not asked.mixed:
                return None
        # The end is what is compared: a start to which a length is added need not give the end that it was made from.
        moments = {by_s, *(time for time in self._times(asked) if time < by_s)}
        starts = ((end - asked.lasts_s, end) for end in sorted(moments, reverse=True))
        return self._first_at(asked, (*(one for one in starts if one[0] >= first), (first, first + asked.lasts_s)))

    def earliest(self, asked: Asked) -> Planned | None:
        """The plan that is done first; None: it never fits."""
        if asked.instances == 1:
            starts = {group: self._earliest_on(group, asked) for group in asked.groups}
            known = {group: start for group, start in starts.items() if start is not None}
            if known:
                group = min(known, key=lambda name: known[name])
                return Planned(known[group], known[group] + asked.lasts_s, {group: asked.devices})
            if not asked.mixed:
                return None
        first = max(self.now, asked.from_s)
        moments = sorted({first, *(time for time in self._times(asked) if time > first)})
        return self._first_at(asked, ((start, start + asked.lasts_s) for start in moments))

    # -- of one group -----------------------------------------------------------------------------------------------

    def _latest_on(self, group: str, asked: Asked, by_s: float) -> float | None:
        """When the latest plan with devices of one group ends."""
        profile = self._groups.get(group)
        if profile is None or asked.groups[group] < asked.devices:
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

    def _earliest_on(self, group: str, asked: Asked) -> float | None:
        profile = self._groups.get(group)
        if profile is None or asked.groups[group] < asked.devices:
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

    # -- of several -------------------------------------------------------------------------------------------------

    def _times(self, asked: Asked) -> set[float]:
        profiles = (self._groups[group] for group in asked.groups if group in self._groups)
        return {time for profile in profiles for time in profile.times if time > self.now}

    def _first_at(self, asked: Asked, moments: Iterable[tuple[float, float]]) -> Planned | None:
        """The plan from the first of these moments, (start, end), at which there is room for all instances."""
        for number, (start, end) in enumerate(moments):
            if number == _MOST_MOMENTS:
                break
            found: dict[str, int] = {}
            left = asked.instances
            # A group that has given away more than it has takes nothing from the others of its node.
            free = {group: max(0, min(self.least(group, start, end), most)) for group, most in asked.groups.items()}
            room = {groups: sum(map(free.__getitem__, groups)) // asked.devices for groups in asked.by_node()}
            for groups in sorted(room, key=lambda name: -room[name]):
                count = min(left, room[groups])
                left -= count
                devices = count * asked.devices
                for group in sorted(groups, key=lambda name: -free[name]):
                    some = min(devices, free[group])
                    if some > 0:
                        found[group] = some
                        devices -= some
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
