"""How owners stand at one moment: what each holds, waits for, is owed, and has had; and so, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Protocol

from prefect_gpu.scheduling.fair_share.owed import claims, down, floors
from prefect_gpu.scheduling.fair_share.tree import NOBODY, Tree
from prefect_gpu.scheduling.fair_share.usage import Usage
from prefect_gpu.scheduling.model.jobs import Job, Request
from prefect_gpu.scheduling.model.shares import Shares

GUARANTEED, LEFT_ALONE, BEHIND, OWED, BORROWED = range(5)
"""What a job's devices are to its owner. The first comes first; the second is :func:`.ranked`'s, for running jobs."""

MADE_UP_IN = 1 / 8
"""Of a half-life: in so long a time owners are given back what they have had too little."""

LOOKS = 16.0
"""So many times in that time it is looked whose turn it is, though nothing happens."""

TOLERATED = 0.045
"""Of all that owners have had: by so little may what one has had differ from what it was owed."""

STEEPNESS = 0.25
"""How much it counts, within that, how far an owner has strayed: see :meth:`Standing.price`. The worth of a run goes
with the root of the work that it still is: so one of a tenth of the work comes first until its owner has had too much,
and the other's too little, by 82 % of what is tolerated."""

BORROWERS = 0.9
"""What the worth of a run is multiplied by if it would borrow: of runs that are nearly alike, those get the devices to
whose owners they are owed now."""

_EVEN = 1e-6  # devices: sums of parts are not exact

Turn = tuple[int, tuple[tuple[float, str], ...]]


class Books(Protocol):
    """What is asked of the scheduler's state."""

    def occupants(self, device_id: str) -> list[Job]: ...


class Standing:
    """One moment; it is made anew after each change.

    Args:
        devices: Those that there are.
        holds: By owner: devices that it holds.
        firm: By owner: those of them that it holds by jobs which cannot be stopped.
        waits: By owner: devices that its waiting jobs ask for.
        coming: By owner: devices on which its jobs are prepared behind others.

    Attributes:
        tree: Groups and owners.
        owed: By node: devices that it is owed now.
        floor: By node: devices of these that are guaranteed to it.
    """

    def __init__(
        self,
        shares: Shares,
        usage: Usage,
        devices: int,
        holds: Mapping[str, float],
        firm: Mapping[str, float],
        waits: Mapping[str, float],
        coming: Mapping[str, float] = {},
    ) -> None:
        self.shares, self.usage, self.devices = shares, usage, devices
        self.holds, self.firm, self.waits = holds, firm, waits
        self._coming = coming
        self.has = _sum(holds, coming)  # what is in its hands, now or soon
        self.tree = Tree(shares, {*self.has, *waits, *usage.had, *usage.owed})
        wants = {owner: self.has.get(owner, 0.0) + waits.get(owner, 0.0) for owner in self.tree.leaf}
        bounds = claims(self.tree, wants)
        self._most = bounds[0]
        self.owed = down(self.tree, bounds, devices)
        self.floor = floors(self.tree, wants)

    @property
    def look_again_s(self) -> float:
        """Seconds after which it may be somebody else's turn although nothing has happened."""
        return MADE_UP_IN * self.shares.half_life_s / LOOKS

    # -- one owner --------------------------------------------------------------------------------------------------

    def owed_to(self, owner: str) -> float:
        """Devices that an owner is owed now."""
        return self.owed[self.tree.leaf[owner]]

    def guaranteed_to(self, owner: str) -> float:
        """Devices that are guaranteed to an owner now, at most as many as it asks for."""
        return self.floor[self.tree.leaf[owner]]

    def allowance(self, owner: str) -> float:
        """Devices that an owner is to have now: what it is owed, and what makes up for what it has had."""
        return self._allowed(owner, self.tolerated)

    def _allowed(self, owner: str, more: float) -> float:
        leaf = self.tree.leaf[owner]
        made_up = (self.usage.behind(owner) + more) / (MADE_UP_IN * self.shares.half_life_s)
        return min(self._most[leaf], max(self.floor[leaf], self.owed[leaf] + made_up))

    @cached_property
    def tolerated(self) -> float:
        """Device-seconds by which what an owner has had may differ from what it was owed."""
        return TOLERATED * sum(self.usage.had.values())

    def price(self, owner: str) -> float | None:
        """What the worth of an owner's runs is multiplied by, beside that of others; 1 if it has had what it was owed.

        None: it has strayed by more than is tolerated, so that only turns count.

        Example:
            >>> from prefect_gpu.scheduling.model.shares import Shares
            >>> usage = Usage()
            >>> usage.remembered({"ada": 480.0, "bob": 520.0}, {"ada": 500.0, "bob": 500.0}, 0.0)
            >>> standing = Standing(Shares(3600.0, ()), usage, 4, {}, {}, {})
            >>> round(standing.price("ada"), 3), round(standing.price("bob"), 3)
            (1.27, 0.788)
        """
        strayed, most = self.usage.behind(owner), self.tolerated
        if abs(strayed) >= most:
            return None
        return float(((most + strayed) / (most - strayed)) ** STEEPNESS)

    def kind_of(self, owner: str, devices: float, sure: float | None = None) -> int:
        """What the last of so many devices are to their owner: guaranteed, owed, or borrowed.

        What its jobs are only prepared for counts, but not as guaranteed: nobody knows when they will have it.

        Args:
            sure: How many of them count for the guarantee; None: all.
        """
        sure = devices if sure is None else sure
        if sure - self._coming.get(owner, 0.0) <= self.guaranteed_to(owner) + _EVEN:
            return GUARANTEED
        if self.usage.behind(owner) > self.tolerated and devices <= self._allowed(owner, -self.tolerated) + _EVEN:
            return BEHIND
        return OWED if devices <= self.allowance(owner) + _EVEN else BORROWED

    def lacks(self, owner: str, devices: float) -> bool:
        """Whether so many devices are less than what is guaranteed to an owner."""
        return devices - self._coming.get(owner, 0.0) < self.guaranteed_to(owner) - _EVEN

    def part_had(self, owner: str) -> float:
        """Its part of all that was had, 0 to 1."""
        return self.usage.had.get(owner, 0.0) / (sum(self.usage.had.values()) or 1.0)

    def part_owed(self, owner: str) -> float:
        """Its part of all that was owed meanwhile, 0 to 1; before anything was, of what is owed now."""
        due = self.usage.owed or {name: self.owed_to(name) for name in self.tree.leaf}
        return due.get(owner, 0.0) / (sum(due.values()) or 1.0)

    def would_borrow(self, request: Request) -> bool:
        """Whether a waiting job would have more than its owner is to have now."""
        return self._kind_of_next(request) == BORROWED

    def is_guaranteed(self, request: Request) -> bool:
        """Whether what a waiting job would have more is guaranteed to its owner."""
        return self._kind_of_next(request) == GUARANTEED

    def _kind_of_next(self, request: Request) -> int:
        return self.kind_of(request.owner, self.has.get(request.owner, 0.0) + request.total_gpus)

    # -- limits -----------------------------------------------------------------------------------------------------

    def limit_on(self, request: Request, *, firm: bool, more: Mapping[str, float] = {}) -> tuple[str, str] | None:
        """(code, reason) why a job may not start whoever waits, or None.

        Args:
            firm: Whether it cannot be stopped once it runs: then it gets nothing that is guaranteed to others.
            more: By owner: devices that others are about to be given.
        """
        owner, devices = request.owner, request.total_gpus
        if not devices:
            return None
        holds = self._totals_held if not more else self.tree.totals(_sum(self.has, more))
        for node in self.tree.path(owner):
            limit = self.tree.share[node].limit
            if limit is not None and holds[node] + devices > limit + _EVEN:
                holds_words = f"{self.tree.limit_words(node)}, and it holds {holds[node]:g}"
                return "share-limit", self.tree.never_within(owner, devices) or holds_words
        if firm and self._takes_what_is_promised(owner, devices, more):
            others = ", ".join(self._lacking(owner)) or "others"
            return "guaranteed", self.tree.never_beside(owner, devices, self.devices) or (
                f"what is free is guaranteed to {others}, and lent only to runs that may be stopped: with "
                "preemptible=True it could start"
            )
        return None

    def room_to_grow(self, owner: str) -> float:
        """Devices that an owner's runs may have more, within the limits and without anybody else's turn coming first.

        Infinite: there is no such bound.
        """
        limits = [(node, self.tree.share[node].limit) for node in self.tree.path(owner)]
        left = [limit - self._totals_held[node] for node, limit in limits if limit is not None]
        if any(self.waits.get(other, 0.0) for other in self.tree.leaf if other != owner):
            left.append(self.allowance(owner) - self.has.get(owner, 0.0))
        return max(0.0, min(left, default=float("inf")))

    @cached_property
    def _totals_held(self) -> dict[str, float]:
        return self.tree.totals(self.has)

    def _takes_what_is_promised(self, owner: str, devices: float, more: Mapping[str, float]) -> bool:
        """Whether guarantees could not be kept if this owner had so many more for as long as it likes."""
        firm = _sum(self.firm, more)
        fits = sum(firm.values()) + devices <= self.devices + _EVEN  # else it is told that there is no room
        return fits and not self.tree.keeps_guarantees(firm, owner, devices, self.devices)

    def _lacking(self, owner: str) -> list[str]:
        """Who does not hold all that is guaranteed to it, and is not this owner or its group."""
        own = set(self.tree.path(owner))
        shares = self.tree.share.items()
        return [
            node for node, share in shares if node not in own and self._totals_held.get(node, 0.0) < share.guaranteed
        ]

    # -- turns ------------------------------------------------------------------------------------------------------

    def turn(self, owner: str, kind: int) -> Turn:
        """When it is a job's turn: the smallest comes first.

        What is guaranteed comes before what is owed, and that before what is borrowed. Of equals, the group comes first
        that has had least of what it was owed, by its weight, and in it the owner (fair tree, as in Slurm).
        """
        behind = self._behind
        path = reversed(list(self.tree.path(owner)))
        return kind, tuple((-behind[node] / self.tree.share[node].weight, node) for node in path)

    @cached_property
    def _behind(self) -> dict[str, float]:
        return self.tree.totals({owner: self.usage.behind(owner) for owner in self.tree.leaf})

    def turns(self, lines: Iterable[tuple[Request, bool]]) -> list[Turn]:
        """The turns of the next jobs of several lines, each as (what it asks for, whether it is late).

        Of one owner's lines, those that come first are to be first. Where the first is late, and wider than what the
        owner may have, its others borrow until it has been given its devices, but for those that are guaranteed: else
        they would keep it out for ever.
        """
        found, held_back = [], set()
        for request, late in lines:
            owner = request.owner
            kind = self._kind_of_next(request)
            if not request.total_gpus:
                kind = GUARANTEED
            elif owner in held_back and kind != GUARANTEED:
                kind = BORROWED
            elif late and kind == BORROWED:
                held_back.add(owner)
            found.append(self.turn(owner, kind))
        return found

    def called(self, owner: str) -> str:
        """What people call an owner."""
        return owner or NOBODY


def holdings(books: Books, jobs: Iterable[Job]) -> dict[str, float]:
    """By owner: devices that its jobs hold, of these. Of a device that several share, each holds its part."""
    found: dict[str, float] = {}
    for job in jobs:
        if job.placement is None:
            continue
        devices = job.placement.all_devices
        if job.placement.shared:
            together = [sum(one.behind is None for one in books.occupants(device)) for device in devices]
            held = sum(1.0 / max(1, count) for count in together)
        else:
            held = float(len(devices))
        if held:
            found[job.request.owner] = found.get(job.request.owner, 0.0) + held
    return found


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in (*one, *other)}
