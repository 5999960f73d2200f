"""How owners and groups stand, in rows for people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from prefect_gpu.scheduling.fair_share.standing import Standing


@dataclass(frozen=True)
class ShareRow:
    """One owner, or one group with all its members together.

    Attributes:
        name: What it is called. Owners that are named like a group have " itself" after that.
        group: The group that it belongs to; empty: the pool itself.
        depth: In how many groups it is.
        is_group: Whether it is a group.
        guaranteed: Devices that are guaranteed to it.
        limit: Devices that it never exceeds; None: no limit.
        weight: Its part of what is divided, beside its siblings'.
        holds: Devices that it holds now.
        waits: Devices that its waiting runs ask for.
        owed: Devices that it is owed now: never more than it asks for.
        had_part: Its part of all that was had, 0 to 1, with what is longer ago counted less.
        owed_part: Its part of all that was owed meanwhile, 0 to 1.
        lent: Devices that are guaranteed to it and that others use.
        borrowed: Devices that it uses beyond what it is owed.
        expects: What it may expect next, in words.
    """

    name: str
    group: str
    depth: int
    is_group: bool
    guaranteed: int
    limit: int | None
    weight: float
    holds: float
    waits: float
    owed: float
    had_part: float
    owed_part: float
    lent: float
    borrowed: float
    expects: str


def table(standing: Standing) -> list[ShareRow]:
    """All of them, each group before its members; of owners that are not named those that hold, wait or had some."""
    tree, rows = standing.tree, list[ShareRow]()
    holds, waits = tree.totals(standing.has), tree.totals(standing.waits)
    had = tree.totals({owner: standing.part_had(owner) for owner in tree.leaf})
    owed = tree.totals({owner: standing.part_owed(owner) for owner in tree.leaf})
    in_use = sum(standing.has.values())
    free = max(0.0, standing.devices - in_use)

    def look(node: str, parent: str, depth: int) -> None:
        share, members = tree.share[node], tree.children.get(node, [])
        lacks = max(0.0, share.guaranteed - holds[node])
        row = ShareRow(
            name=tree.called(node),
            group=parent,
            depth=depth,
            is_group=bool(members),
            guaranteed=share.guaranteed,
            limit=share.limit,
            weight=share.weight,
            holds=holds[node],
            waits=waits[node],
            owed=standing.owed[node],
            had_part=had[node],
            owed_part=owed[node],
            lent=max(0.0, min(lacks - free, in_use - holds[node])),
            borrowed=max(0.0, holds[node] - standing.owed[node]),
            expects=_expects(standing, node, holds[node], waits[node], free),
        )
        rows.append(row)
        for member in members:
            look(member, node, depth + 1)

    for node in tree.children[None]:
        look(node, "", 0)
    return rows


def _expects(standing: Standing, node: str, holds: float, waits: float, free: float) -> str:
    share, owed, sure = standing.tree.share[node], standing.owed[node], standing.floor[node]
    if share.limit is not None and holds >= share.limit and waits:
        return f"nothing more: its limit of {share.limit} is reached"
    back, more = floor(sure - holds + 1e-6), floor(owed - holds + 1e-6)
    if waits and back > 0:
        return f"{back} more{'' if free >= back else ' at the next checkpoint'}: guaranteed"
    if waits and more > 0:
        return f"{more} more, before those who borrow"
    if holds > owed + 1e-6:
        return f"gives {holds - owed:.3g} back when somebody is owed them"
    if waits:
        return "holds its share; more when others leave some" if holds else "what others leave: it is owed none now"
    return "has all that it asks for" if holds else ""
