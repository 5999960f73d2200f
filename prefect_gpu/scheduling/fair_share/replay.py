"""What owners had and were owed, counted anew from runs that are over and runs that are not. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prefect_gpu.scheduling.fair_share.owed import owed
from prefect_gpu.scheduling.fair_share.tree import Tree
from prefect_gpu.scheduling.fair_share.usage import Usage
from prefect_gpu.scheduling.model.shares import Shares

HALF_LIVES = 6.0
"""What is longer ago counts less than a sixtieth."""


class Stay(NamedTuple):
    """One launch of a run: whose it is, how many devices it had or waits for, and since when. Times are seconds.

    Attributes:
        granted: When it was given devices; None: it still waits.
    """

    owner: str
    devices: float
    submitted: float
    granted: float | None
    ended: float | None = None


def replay(shares: Shares, devices: int, stays: Iterable[Stay], now: float) -> Usage:
    """Count what there was until now, as if the pool had always had so many devices and these shares."""
    first = now - HALF_LIVES * shares.half_life_s
    changes: list[tuple[float, str, float, float]] = []  # when, whose, devices held more, devices wanted more
    owners: set[str] = set()
    for owner, count, submitted, granted, ended in stays:
        end = min(now, now if ended is None else ended)
        began = end if granted is None else min(max(granted, first), end)
        since = min(max(submitted, first), began)
        if end <= first:
            continue
        owners.add(owner)
        changes += [(since, owner, 0.0, count), (began, owner, count, 0.0), (end, owner, -count, -count)]
    tree, usage = Tree(shares, owners), Usage()
    holds, wants = dict.fromkeys(owners, 0.0), dict.fromkeys(owners, 0.0)
    usage.pass_time(holds, {}, first, shares.half_life_s)
    for moment, owner, held, wanted in sorted(changes):
        if usage.at is None or moment > usage.at:
            by_node = owed(tree, devices, wants)
            due = {name: by_node[tree.leaf[name]] for name in owners}
            usage.pass_time(holds, due, moment, shares.half_life_s)
        holds[owner] += held
        wants[owner] += wanted
    usage.pass_time({}, {}, now, shares.half_life_s)
    return usage
