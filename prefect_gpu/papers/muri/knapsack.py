"""Which waiting jobs run together: the set of jobs worth most that fills the GPUs, not the first ones that fit.

Taking jobs in order and skipping what does not fit lets small jobs keep a wide one out and leaves GPUs idle beside it.
Here every job has a value, and the set with the largest sum is chosen. For GPU counts that are powers of two, on equal
nodes whose size is one as well, that set is exact and cheap: two jobs (or pairs of jobs) of the same width make one of
twice the width, the best two first, until they are as wide as the cluster. Other counts are rounded up for the choice
alone; what that leaves free goes to the jobs not chosen, in order.

A job's value is ``gpus x (remaining work)^-emphasis``, work being GPUs x seconds. With an emphasis of 1 that is one
over its remaining time; towards 0 it only matters that GPUs are busy. (Smallest remaining work first, greedily, is the
same order of value per GPU without the choice of a set.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

EMPHASIS = 0.6
SHORTEST_S = 1.0  # a job about to end has a large value, not an infinite one


def rank(
    gpus: Sequence[int] | Ints,
    remaining_s: Sequence[float] | Floats,
    node_gpus: Sequence[int] | Ints,
    *,
    emphasis: float = EMPHASIS,
) -> list[int]:
    """In which order to offer GPUs to jobs: each takes them if they fit now, else the next one is asked.

    Args:
        gpus: GPUs each job asks for, running jobs included if they may be preempted; at least 1.
        remaining_s: seconds each would still run on them (a duration, or an estimate of one).
        node_gpus: GPUs to be given away on each node.
        emphasis: how much little remaining work counts against filling the GPUs, 0 to 1.

    Returns:
        Every job's index once: the chosen set, widest job first (so that placing them one by one fragments nothing),
        then the others by remaining work. Of equals, the one that stands first in the input comes first.

    Raises:
        ValueError: if lengths differ, a job asks for no GPU, or a time is negative or not a number.

    Example:
        Alone, the job of one GPU would leave the other idle, so the one of two goes first. A pair of them fills both.

        >>> rank([1, 2], [10.0, 12.0], [2])
        [1, 0]
        >>> rank([1, 2, 1], [10.0, 12.0, 10.0], [2])
        [0, 2, 1]
    """
    widths = np.asarray(gpus, dtype=np.int64)
    seconds = np.asarray(remaining_s, dtype=np.float64)
    _check(widths, seconds)
    if not 0 <= emphasis <= 1:
        raise ValueError(f"emphasis is {emphasis}: give a number from 0 to 1")
    work = np.asarray(widths * np.maximum(seconds, SHORTEST_S), dtype=np.float64)
    return offer_order(widths, work, np.asarray(node_gpus, dtype=np.int64), emphasis)


def offer_order(widths: Ints, work: Floats, node_gpus: Ints, emphasis: float = EMPHASIS) -> list[int]:
    """:func:`rank` on arrays already checked: GPUs, remaining GPU-seconds (above 0), GPUs per node."""
    chosen = best_set(widths, widths * work**-emphasis, node_gpus)
    left = np.ones(len(widths), dtype=bool)
    left[chosen] = False
    others = np.flatnonzero(left)
    # lexsort's last key counts most; the index, in which both arrays stand, decides between equals
    chosen = chosen[np.lexsort((chosen, work[chosen], -widths[chosen]))]
    others = others[np.argsort(work[others], kind="stable")]
    return [*chosen.tolist(), *others.tolist()]


def best_set(widths: Ints, value: Floats, node_gpus: Ints) -> Ints:
    """The jobs whose values add up to most among those that fit together.

    Args:
        widths: GPUs of each job; up to a node's on one node, more on whole nodes.
        value: what running the job is worth, above 0.
        node_gpus: GPUs to be given away on each node.

    Returns:
        Indices of the set, in no particular order. Exact for powers of two on equal nodes of such a size.
    """
    blocks = _blocks(node_gpus)
    if not len(widths) or not blocks:
        return np.empty(0, dtype=np.int64)
    levels = _levels(widths, node_gpus, blocks)
    count = len(widths)
    pairs: list[Ints] = []  # the two halves of each bundle; -1 where there is only one
    chosen: list[Ints] = []
    bundles = np.empty(0, dtype=np.int64)
    bundle_values = np.empty(0)
    room = sum(blocks[level] << level for level in range(len(blocks)))
    made = count
    for level, own in enumerate(blocks):
        singles = np.flatnonzero(levels == level)
        ids = np.concatenate([singles, bundles])
        worth = np.concatenate([value[singles], bundle_values])
        # no more than this many fit even if everything wider stays out
        best = np.argsort(-worth, kind="stable")[: room >> level]
        ids, worth = ids[best], worth[best]
        # blocks that end at this level (a node of 4 among nodes of 8, say) cannot be used by anything wider
        chosen.append(ids[:own])
        room -= own << level
        ids, worth = ids[own:], worth[own:]
        if len(ids) % 2:
            ids, worth = np.append(ids, -1), np.append(worth, 0.0)
        pairs.append(ids.reshape(-1, 2))
        bundle_values = worth[0::2] + worth[1::2]
        bundles = np.arange(made, made + len(bundle_values), dtype=np.int64)
        made += len(bundle_values)
    return _unfold(np.concatenate(chosen), np.concatenate(pairs), count)


def _blocks(node_gpus: Ints) -> list[int]:
    """How many aligned blocks of 1, 2, 4 ... GPUs the cluster is; whole nodes of the largest size make wider ones."""
    sizes = node_gpus[node_gpus > 0]
    if not len(sizes):
        return []
    top = int(sizes.max()).bit_length() - 1
    blocks = [int(np.count_nonzero(sizes >> level & 1)) for level in range(top + 1)]
    nodes = blocks.pop()
    return blocks + [nodes >> level & 1 for level in range(nodes.bit_length())]


def _levels(widths: Ints, node_gpus: Ints, blocks: list[int]) -> Ints:
    """The block (as a power of two) that each job counts as; -1 if it fits nowhere now."""
    widest = int(node_gpus.max())
    top = widest.bit_length() - 1
    nodes = np.where(widths > widest, -(-widths // widest), 1)
    levels = np.where(nodes > 1, top + _log2_up(nodes), np.minimum(_log2_up(widths), top))
    # a width that is no power of two may fit although its block does not: offer it as the largest there is
    levels = np.minimum(levels, len(blocks) - 1)
    return np.where(nodes > np.count_nonzero(node_gpus == widest), -1, levels)


def _log2_up(numbers: Ints) -> Ints:
    """The exponent of the smallest power of two that is not below each number (at least 1)."""
    _, exponents = np.frexp((numbers - 1).astype(np.float64))  # exact for all integers below 2^53
    return np.asarray(exponents, dtype=np.int64)


def _unfold(ids: Ints, pairs: Ints, count: int) -> Ints:
    """The jobs inside bundles."""
    jobs = [ids[(ids >= 0) & (ids < count)]]
    ids = ids[ids >= count]
    while len(ids):
        ids = pairs[ids - count].ravel()
        jobs.append(ids[(ids >= 0) & (ids < count)])
        ids = ids[ids >= count]
    return np.concatenate(jobs)


def _check(widths: Ints, seconds: Floats) -> None:
    if len(widths) != len(seconds):
        raise ValueError(f"{len(widths)} GPU counts but {len(seconds)} remaining times: give one of each per job")
    if len(widths) and widths.min() < 1:
        raise ValueError(f"gpus is {int(widths.min())} for a job: leave out jobs that need no GPU")
    if not np.all(seconds >= 0) or np.isinf(seconds).any():
        raise ValueError("remaining_s has a time that is negative, infinite or not a number: give seconds, at least 0")
