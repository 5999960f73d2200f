"""Which jobs run together: the set that is worth most among those that fit, chosen as a whole. Counts only; pure.

Taking jobs in order lets small ones keep a wide one out, and leaves devices idle beside it. Here all of them compete at
once. For widths that are powers of two the set is exact and cheap: of one width, the best that could fit are kept; two
of them make a bundle of twice the width, the best two first, which competes with the single jobs of that width; and so
on up to the width of the cluster.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

T = TypeVar("T", bound=Hashable)

EMPHASIS = 0.5
"""How much little work counts against busy devices: with 1, a job's value is one over its time; with 0, its width."""

STAYS = 4.0
"""So many restarts is a running job treated as shorter than it is: two that are nearly equal do not take turns."""

PAID_BACK, PAID_BACK_S, LEAST_PAID_BACK = 120.0, 3_600.0, 5.0
"""A stop doubles those seconds, until the job has held its devices for so many restarts more, or for so many seconds:
an hour is enough unless it is less than the least number of restarts."""

SHORTEST_S = 1.0  # a job about to end has a large value, not an infinite one

_value_of = itemgetter(0)


def value(devices: int, left_s: float) -> float:
    """What it is worth to run a job that needs so many devices for so many seconds more."""
    return devices * (devices * (left_s if left_s > SHORTEST_S else SHORTEST_S)) ** -EMPHASIS  # not max(): it is slow


def paid_back_s(restart_s: float) -> float:
    """For how long a job must hold its devices to pay back a stop, whose restart takes so long; in seconds."""
    return min(PAID_BACK * restart_s, max(PAID_BACK_S, LEAST_PAID_BACK * restart_s))


def level_of(devices: int) -> int:
    """The exponent of the smallest power of two that is not below a number (at least 1)."""
    return (devices - 1).bit_length()


def blocks_of(free: Iterable[int], size: int) -> list[int]:
    """How many aligned blocks of 1, 2, 4 … devices nodes are that have so many to give, of ``size`` at most.

    Nodes of the full size make wider blocks, two nodes, four, and so on, by the binary digits of their number.
    """
    top = size.bit_length() - 1
    blocks = [0] * top
    whole = 0
    for count in free:
        if count >> top:
            whole += 1
            count -= 1 << top
        for level in range(top):
            blocks[level] += count >> level & 1
    return blocks + [whole >> level & 1 for level in range(whole.bit_length())]


def best_set(by_level: Sequence[Sequence[tuple[float, T]]], blocks: Sequence[int]) -> list[T]:
    """The jobs whose values add up to most among those that fit together.

    Args:
        by_level: For each power of two, the jobs of that width, as (value, job); the best first.
        blocks: See :func:`blocks_of`.

    Returns:
        The jobs, in no particular order. Of equals, the one that stands first comes first.

    Example:
        One job of two devices, against the best two of one device:

        >>> best_set([[(5.0, "a"), (4.0, "b"), (3.0, "c")], [(8.0, "wide")]], [0, 1])
        ['a', 'b']
    """
    room = sum(count << level for level, count in enumerate(blocks))
    chosen: list[Any] = []
    bundles: list[tuple[float, Any]] = []
    for level, own in enumerate(blocks):
        singles = by_level[level] if level < len(by_level) else ()
        if bundles and singles:
            ranked = sorted([*singles, *bundles], key=_value_of, reverse=True)  # both are sorted: a merge
        else:
            ranked = list(singles or bundles)
        del ranked[room >> level :]
        if own:
            chosen += ranked[:own]
            room -= own << level
            ranked = ranked[own:]
        bundles = [(one[0] + two[0], (one, two)) for one, two in zip(ranked[::2], ranked[1::2], strict=False)]
        if len(ranked) % 2:
            bundles.append((ranked[-1][0], (ranked[-1],)))
    jobs: list[T] = []
    while chosen:
        entry = chosen.pop()[1]
        if type(entry) is tuple:
            chosen += reversed(entry)
        else:
            jobs.append(entry)
    return jobs
