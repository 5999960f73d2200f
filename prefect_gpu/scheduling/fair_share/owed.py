"""What each owner is owed now: guarantees first, the rest by weight, within limits, down the tree. Pure.

The rule is max-min fairness with weights, floors and ceilings, level by level: YARN's fair scheduler has the same, with
"minimum share" for what is a guarantee here. Nobody is owed more than it asks for, so what one leaves others share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_gpu.scheduling.fair_share.tree import Tree

Bounds = tuple[float, float, float]
"""Of a node: its floor, its ceiling, and its weight."""


def owed(tree: Tree, devices: float, wants: Mapping[str, float]) -> dict[str, float]:
    """By node, groups included: how many of the devices it is owed.

    Args:
        wants: By owner: devices that it holds and waits for together.

    Example:
        >>> from prefect_gpu.scheduling.model.shares import Share, Shares
        >>> shares = Shares(3600.0, (Share("ada", weight=2.0), Share("bob", guaranteed=2)))
        >>> owed(Tree(shares, ()), 8, {"ada": 20, "bob": 20})
        {'ada': 5.333333333333333, 'bob': 2.6666666666666665}
        >>> owed(Tree(shares, ()), 8, {"ada": 20, "bob": 1})
        {'ada': 7.0, 'bob': 1}
    """
    return down(tree, claims(tree, wants), devices)


def floors(tree: Tree, wants: Mapping[str, float]) -> dict[str, float]:
    """By node: what is guaranteed to it of what it can use; what a group has is divided among its members."""
    most, least = claims(tree, wants)
    return down(tree, (most, least), sum(least[node] for node in tree.children[None]))


def down(tree: Tree, bounds: tuple[Mapping[str, float], Mapping[str, float]], devices: float) -> dict[str, float]:
    """Divide devices at each level, within bounds as :func:`claims` gives them."""
    most, least = bounds
    found: dict[str, float] = {}

    def divide(parent: str | None, amount: float) -> None:
        nodes = tree.children.get(parent, [])
        parts = water_fill([(least[node], most[node], tree.share[node].weight) for node in nodes], amount)
        for node, part in zip(nodes, parts, strict=True):
            found[node] = part
            divide(node, part)

    divide(None, devices)
    return found


def claims(tree: Tree, wants: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """By node: the most that it can use, within its limit; and what of that is guaranteed to it or to its members."""
    most: dict[str, float] = {}
    least: dict[str, float] = {}
    own = {tree.leaf[owner]: number for owner, number in wants.items()}

    def look(node: str) -> None:
        share, members = tree.share[node], tree.children.get(node, [])
        for member in members:
            look(member)
        wanted = own.get(node, 0.0) + sum(most[member] for member in members)
        most[node] = wanted if share.limit is None else min(wanted, share.limit)
        least[node] = min(most[node], max(share.guaranteed, sum(least[member] for member in members)))

    for node in tree.children[None]:
        look(node)
    return most, least


def water_fill(bounds: Sequence[Bounds], amount: float) -> list[float]:
    """Divide an amount by weight, where each has a floor and a ceiling.

    If the floors are more than there is, all get the same part of theirs; if the ceilings are less, all get theirs.

    Example:
        >>> water_fill([(0.0, 9.0, 2.0), (0.0, 9.0, 1.0), (0.0, 1.0, 1.0)], 7.0)
        [4.0, 2.0, 1.0]
    """
    floors, ceilings = sum(one[0] for one in bounds), sum(one[1] for one in bounds)
    if floors >= amount:
        return [low * amount / floors if floors else 0.0 for low, _, _ in bounds]
    if ceilings <= amount:
        return [high for _, high, _ in bounds]
    # All of them stand in water of one level; the level rises from one floor or ceiling to the next.
    level, held, slope = 0.0, floors, 0.0
    turns = sorted(
        [(low / weight, weight) for low, _, weight in bounds] + [(high / weight, -weight) for _, high, weight in bounds]
    )
    for at, weight in turns:
        if slope and held + (at - level) * slope >= amount:
            break
        held, level = held + (at - level) * slope, at
        slope += weight
    if slope > 0.0:
        level += (amount - held) / slope
    return [min(high, max(low, level * weight)) for low, high, weight in bounds]
