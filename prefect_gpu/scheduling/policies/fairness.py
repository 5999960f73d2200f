"""Whose turn is it? Dominant resource fairness (Ghodsi et al., 2011), on plain numbers."""

from __future__ import annotations

from collections.abc import Mapping


def dominant_share(use: Mapping[str, float], total: Mapping[str, float]) -> float:
    """The largest part of any one resource that a user holds.

    Args:
        use: What the user holds, by resource; resources that ``total`` does not name do not count.
        total: What the cluster has, by resource: one resource for CODA's arrays (cores, or GPUs), all for plain DRF.

    Raises:
        ValueError: A negative amount.
    """
    share = 0.0
    for resource, amount in total.items():
        held = use.get(resource, 0.0)
        if held < 0 or amount < 0:
            raise ValueError(f"{resource} is {held} of {amount}: give amounts of at least 0")
        if held > 0:
            share = max(share, held / amount if amount else float("inf"))
    return share


def by_share(
    use_by_user: Mapping[str, Mapping[str, float]],
    total: Mapping[str, float],
    weight_by_user: Mapping[str, float] | None = None,
) -> list[str]:
    """Users in the order in which their next jobs are considered: the smallest dominant share ÷ weight first.

    Args:
        use_by_user: What each user holds, by resource.
        total: What the cluster has, by resource.
        weight_by_user: A user of weight 2 may hold twice as much; 1 if not given.

    Raises:
        ValueError: A weight is not positive.
    """
    weights = weight_by_user or {}
    for user, weight in weights.items():
        if not weight > 0:
            raise ValueError(f"weight of user {user!r} is {weight}: give a number above 0")
    shares = {user: dominant_share(use, total) / weights.get(user, 1.0) for user, use in use_by_user.items()}
    return sorted(shares, key=lambda user: shares[user])
