"""What would come of starting a list of jobs in a given order: who starts when and where, and when each would end.

Ours. A few hundred additions for a dozen gangs, so that a scheduler can compare several orders before it decides.
Plain Python numbers and lists: of each event a handful of nodes is touched, for which arrays would be slower.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from prefect_gpu.scheduling.placement.kernels.containers import Plan


@dataclass(frozen=True)
class Sites:
    """The nodes, and how fast their links are.

    Attributes:
        racks: Rack of each node, numbered over all domains.
        domains: Domain of each rack; no gang straddles two.
        link_bps: Bandwidth of each node's own link, bytes per second; 0: unknown, and then never in the way.
        uplink_bps: Bandwidth between each rack and the others; likewise.
    """

    racks: tuple[int, ...]
    domains: tuple[int, ...]
    link_bps: tuple[float, ...]
    uplink_bps: tuple[float, ...]


@dataclass(frozen=True)
class Member:
    """One job of the list, or one that runs.

    Attributes:
        name: Its id.
        workers: Instances, each whole on one node.
        gpus: Devices of each.
        service_s: Seconds that it (still) trains for if no link is in its way.
        launching_s: Seconds (left) until it could train.
        saving_s: Seconds from the end of its training until its devices are free.
        sent_bps: Bytes per second that each instance sends to the others while it trains so; as many are received.
        plan: The node of each worker, if it runs.
    """

    name: str
    workers: int
    gpus: int
    service_s: float
    launching_s: float = 0.0
    saving_s: float = 0.0
    sent_bps: float = 0.0
    plan: Plan = ()


@dataclass(frozen=True)
class Course:
    """What would come of it. Times in seconds from now.

    Attributes:
        ends: When each job's devices would be free again, those that run included.
        starts: When, and on which node for each worker, each job of the list would start.
    """

    ends: dict[str, float]
    starts: dict[str, tuple[float, Plan]]


def stretch_across(member: Member, sites: Sites) -> float:
    """By which factor a gang takes longer on the narrowest uplink that is known than on no link at all."""
    narrowest = min((bps for bps in sites.uplink_bps if bps > 0), default=math.inf)
    return 1.0 + member.sent_bps / narrowest


def is_across(plan: Plan, sites: Sites) -> bool:
    """Whether a plan takes nodes of several racks."""
    return len({sites.racks[node] for node in plan}) > 1


def stretch(member: Member, sites: Sites) -> float:
    """By which factor a job takes longer where it is than on no link, if nobody else uses its links."""
    return 1.0 + max(_uses(member, member.plan, sites).values(), default=0.0)


def course(
    sites: Sites,
    free: Sequence[int],
    running: Sequence[Member],
    order: Sequence[Member],
    near: Collection[str] = (),
    never_passed: Collection[str] = (),
) -> Course | None:
    """Start jobs in order as soon as there is room, later ones passing those for which there is none.

    Each goes on one node if any holds it, else in one rack, else across the racks of a domain: the fullest that has
    room. A gang that uses links takes longer, and those that share one with others still longer: for each of them by
    the part of its own time for which it uses that link alone.

    Args:
        sites: The nodes.
        free: Free devices of each.
        running: Jobs that have their places, each with a plan.
        order: Jobs that wait.
        near: Names of those that start in one rack or not at all.
        never_passed: Names of those before whom nobody starts who comes later in the order.

    Returns:
        What would come of it; None if somebody would never start.
    """
    room = list(free)
    active = [_Active(member, member.plan, 0.0, sites) for member in running]
    waiting = list(order)
    ends: dict[str, float] = {}
    starts: dict[str, tuple[float, Plan]] = {}
    now = 0.0
    while True:
        waiting = _start(waiting, room, sites, near, never_passed, active, starts, now)
        if not active:
            return None if waiting else Course(ends, starts)
        pace = _paces(active)
        now = min(one.next_at(now, seconds) for one, seconds in zip(active, pace, strict=True))
        still = []
        for one, seconds in zip(active, pace, strict=True):
            if one.advance(now, seconds):
                ends[one.member.name] = now
                for node in one.plan:
                    room[node] += one.member.gpus
            else:
                still.append(one)
        active = still


_LAUNCHING, _TRAINING, _SAVING = range(3)
_NOTHING = 1e-9  # part of a job that is lost to rounding


class _Active:
    """A job that has its place."""

    __slots__ = ("at", "left_s", "member", "parts", "phase", "plan", "until", "uses")

    def __init__(self, member: Member, plan: Plan, now: float, sites: Sites) -> None:
        self.member, self.plan = member, plan
        self.phase, self.at, self.until, self.left_s = _LAUNCHING, now, now + member.launching_s, member.service_s
        self.uses = _uses(member, plan, sites)
        longest = 1.0 + max(self.uses.values(), default=0.0)
        self.parts = {link: seconds / longest for link, seconds in self.uses.items()}

    def next_at(self, now: float, seconds: float) -> float:
        return now + self.left_s * seconds if self.phase == _TRAINING else self.until

    def advance(self, now: float, seconds: float) -> bool:
        """Let time pass until now; whether the job is over."""
        if self.phase == _TRAINING:
            self.left_s -= (now - self.at) / seconds
        self.at = now
        if self.phase == _LAUNCHING and self.until <= now:
            self.phase = _TRAINING
        if self.phase == _TRAINING and self.left_s <= _NOTHING * (1.0 + self.member.service_s):
            self.phase, self.until = _SAVING, now + self.member.saving_s
        return self.phase == _SAVING and self.until <= now


def _paces(active: Sequence[_Active]) -> list[float]:
    """Seconds that a second of service takes each job now."""
    load: dict[int, float] = {}
    for one in active:
        if one.phase == _TRAINING:
            for link, part in one.parts.items():
                load[link] = load.get(link, 0.0) + part
    return [
        1.0 + max(seconds * (1.0 + load[link] - one.parts[link]) for link, seconds in one.uses.items())
        if one.uses and one.phase == _TRAINING
        else 1.0
        for one in active
    ]


def _uses(member: Member, plan: Plan, sites: Sites) -> dict[int, float]:
    """Seconds for which a job uses each link in a second of service: nodes' own links, then racks' uplinks.

    As in a ring, what an instance sends passes each link between two neighbours once.
    """
    if not member.sent_bps or len(set(plan)) < 2:
        return {}
    bandwidths = {node: sites.link_bps[node] for node in plan}
    racks = {sites.racks[node] for node in plan}
    if len(racks) > 1:
        bandwidths |= {len(sites.racks) + rack: sites.uplink_bps[rack] for rack in racks}
    return {link: member.sent_bps / bps for link, bps in bandwidths.items() if bps > 0}


def _start(
    waiting: Sequence[Member],
    room: list[int],
    sites: Sites,
    near: Collection[str],
    never_passed: Collection[str],
    active: list[_Active],
    starts: dict[str, tuple[float, Plan]],
    now: float,
) -> list[Member]:
    """Start those for which there is room; the others, in their order."""
    left = sum(room)
    rest: list[Member] = []
    tried: set[tuple[int, int, bool]] = set()  # what found no room: who asks for the same finds none either
    for at, member in enumerate(waiting):
        shape = (member.workers, member.gpus, member.name in near)
        plan = None
        if member.workers * member.gpus <= left and shape not in tried:
            plan = _room(*shape, room, sites)
            if plan is None:
                tried.add(shape)
        if plan is None and member.name in never_passed:
            return [*rest, *waiting[at:]]
        if plan is None:
            rest.append(member)
            continue
        for node in plan:
            room[node] -= member.gpus
        left -= member.workers * member.gpus
        starts[member.name] = (now, plan)
        active.append(_Active(member, plan, now, sites))
    return rest


def _room(workers: int, gpus: int, near: bool, room: Sequence[int], sites: Sites) -> Plan | None:
    """The nearest place for a gang, of several the one where the least is left over."""
    holds = [free // gpus for free in room]
    whole = min((node for node, held in enumerate(holds) if held >= workers), key=holds.__getitem__, default=None)
    if whole is not None:
        return (whole,) * workers
    in_rack = [0] * len(sites.domains)
    for node, held in enumerate(holds):
        in_rack[sites.racks[node]] += held
    rack = min((rack for rack, held in enumerate(in_rack) if held >= workers), key=in_rack.__getitem__, default=None)
    if rack is not None:
        return _fill(workers, holds, [node for node, other in enumerate(sites.racks) if other == rack], in_rack, sites)
    if near:
        return None
    in_domain: dict[int, int] = {}
    for number, held in enumerate(in_rack):
        in_domain[sites.domains[number]] = in_domain.get(sites.domains[number], 0) + held
    domain = min((one for one, held in in_domain.items() if held >= workers), key=in_domain.__getitem__, default=None)
    if domain is None:
        return None
    nodes = [node for node, other in enumerate(sites.racks) if sites.domains[other] == domain]
    return _fill(workers, holds, nodes, in_rack, sites)


def _fill(workers: int, holds: Sequence[int], nodes: Sequence[int], in_rack: Sequence[int], sites: Sites) -> Plan:
    """As few racks and nodes as will do: the racks, and in each the nodes, that hold the most first."""
    plan: list[int] = []
    for node in sorted(nodes, key=lambda node: (-in_rack[sites.racks[node]], sites.racks[node], -holds[node])):
        plan += [node] * min(workers - len(plan), holds[node])
    return tuple(plan)
