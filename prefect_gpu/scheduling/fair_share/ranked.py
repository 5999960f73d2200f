"""How the shares of owners count where the jobs that run next are chosen as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from prefect_gpu.scheduling.fair_share.standing import BORROWED, BORROWERS, GUARANTEED, LEFT_ALONE, OWED, Standing
from prefect_gpu.scheduling.model.jobs import Job


class Unit(Protocol):
    """A job that runs or waits, or those that share a device; see :class:`.units.Unit`."""

    rank: tuple[int, ...]
    width: int
    worth: float

    @property
    def job(self) -> Job: ...


_LATE, _LEFT_ALONE = 0, 1  # in the second place of a rank, as they come


def rank_by_share(standing: Standing, running: Sequence[Unit], waiting: Sequence[Unit]) -> None:
    """Put what the devices of each are to its owner into their ranks, behind the priority of the queue.

    Each owner has its jobs in an order of its own: those that are left alone for a while, those that are late, those of
    high priority, those that are worth most for each device. As many as have room in what is guaranteed to it are that,
    as many more as have room in its allowance are owed, and the others borrow. So guarantees are given back before
    anything else, and what an owner is owed, before anybody borrows. A running job that is left alone for a while makes
    room for what is guaranteed, and for that only; and so does one that has more devices than its owner is guaranteed
    yet, as without it, that would hold less.

    Who borrowed last gives back first: an owner that holds too much while others are owed something keeps the devices
    of its oldest runs, unless it has one waiting that it would rather run.

    But as long as an owner has had nearly what it was owed, all of its runs beyond its guarantee count as owed, and
    each is worth more or less by :meth:`.Standing.price`. So what may be strayed is spent where it ends trainings
    soonest, and is paid back where that costs least: for somebody's short runs another waits with its long ones.
    """
    by_owner: dict[str, list[Unit]] = {}
    for unit in (*running, *waiting):
        by_owner.setdefault(unit.job.request.owner, []).append(unit)
    kinds = _kinds(standing, by_owner, running)
    claims = {unit.job.request.owner for unit in waiting if kinds[id(unit)] != BORROWED}
    for owner, units in by_owner.items():
        if claims and owner not in claims:
            _oldest_keep(units, kinds)
    if claims:
        _oldest_first([unit for unit in running if kinds[id(unit)] == BORROWED])
    prices = {owner: standing.price(owner) for owner in by_owner}
    if any(kinds[id(unit)] == GUARANTEED for unit in waiting):
        for owner, units in by_owner.items():  # also where those that borrow are no class of their own
            given_back = [unit for unit in units if unit.job.active and kinds[id(unit)] in (OWED, BORROWED)]
            if owner not in claims and any(kinds[id(unit)] == BORROWED for unit in given_back):
                _oldest_first(given_back)
    for unit in (*running, *waiting):
        kind, price = kinds[id(unit)], prices[unit.job.request.owner]
        if price is not None:
            unit.worth *= price if kind != BORROWED else price * BORROWERS
            kind = OWED if kind == BORROWED else kind
        alone = unit.rank[1] == _LEFT_ALONE and kind != GUARANTEED
        unit.rank = (unit.rank[0], LEFT_ALONE if alone else kind, *unit.rank[1:])


def _kinds(standing: Standing, by_owner: Mapping[str, list[Unit]], running: Sequence[Unit]) -> dict[int, int]:
    """By the unit's identity: what its devices are to its owner."""
    runs = {id(unit) for unit in running}
    found: dict[int, int] = {}
    for owner, units in by_owner.items():
        units.sort(key=_own_order)
        kept = standing.has.get(owner, 0.0) - sum(unit.width for unit in units if id(unit) in runs)
        sure = kept  # without those that wait for more than is guaranteed: they may wait for long
        held_back = False  # nobody overtakes a late job that does not fit its owner's allowance yet
        for unit in units:
            kind = standing.kind_of(owner, kept + unit.width, sure + unit.width)
            if kind != GUARANTEED and id(unit) in runs and standing.lacks(owner, sure):
                kind = LEFT_ALONE  # without it, its owner would hold less than is guaranteed to it
            if held_back and kind != GUARANTEED:
                kind = BORROWED
            if kind == BORROWED:
                held_back |= unit.rank[1] == _LATE and id(unit) not in runs
            else:
                kept += unit.width
                sure += unit.width if kind == GUARANTEED or id(unit) in runs else 0
            found[id(unit)] = kind
    return found


def _own_order(unit: Unit) -> tuple[object, ...]:
    # Who is left alone comes first: no other run of its owner takes its devices so soon.
    first = 0 if unit.rank[1] == _LEFT_ALONE else 1 if unit.rank[1] == _LATE else 2
    return (unit.rank[0], first, -unit.job.request.priority, -unit.worth / unit.width, unit.job.id)


def _oldest_keep(units: Sequence[Unit], kinds: dict[int, int]) -> None:
    """Of one owner's running jobs of one width, those that have had their devices for longest are no borrowers."""
    alike: dict[tuple[int, int], list[Unit]] = {}
    for unit in units:
        if unit.job.active:
            alike.setdefault((unit.rank[0], unit.width), []).append(unit)
    for some in alike.values():
        found = sorted(kinds[id(unit)] for unit in some)
        for unit, kind in zip(sorted(some, key=_since), found, strict=True):
            kinds[id(unit)] = kind


def _oldest_first(units: Sequence[Unit]) -> None:
    """Of those of one width and rank, who has had its devices for longest is worth most."""
    alike: dict[tuple[object, ...], list[Unit]] = {}
    for unit in units:
        alike.setdefault((unit.width, unit.rank), []).append(unit)
    for some in alike.values():
        worths = sorted((unit.worth for unit in some), reverse=True)
        for unit, worth in zip(sorted(some, key=_since), worths, strict=True):
            unit.worth = worth


def _since(unit: Unit) -> tuple[float, str]:
    return unit.job.granted_at or 0.0, unit.job.id
