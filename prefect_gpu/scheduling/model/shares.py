"""What an operator promises to whom: devices that are guaranteed, limits, and weights, by owner and by group."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """What one owner, or one group of owners, is promised.

    Attributes:
        name: The owner's, as runs say it (``Request.owner``), or the group's.
        parent: The group that it belongs to; empty: the pool itself.
        guaranteed: Devices that it has as soon as it needs them.
        limit: Devices that it never exceeds; None: no limit.
        weight: Its part of what is divided among its siblings, beside theirs; above 0.
    """

    name: str
    parent: str = ""
    guaranteed: int = 0
    limit: int | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class Shares:
    """All that is promised in a pool.

    Attributes:
        half_life_s: After so many seconds, what somebody has had counts half.
        named: Groups and owners. Whoever is somebody's parent is a group.
        default: What each owner is promised that is not named.
    """

    half_life_s: float
    named: tuple[Share, ...] = ()
    default: Share = Share("")
