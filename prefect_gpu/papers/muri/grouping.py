"""Which jobs share which GPUs, so that the sum of completion times falls fastest.

Jobs come in the order in which they would be served: by remaining service where it is known, by attained service where
it is not. The order alone gives each job its worth: a second less of job *j* brings its own end forward by a second
and, through the GPUs that it frees, that of every job behind it by *j*'s share of the cluster:

    worth_j = 1 + gpus_j × (behind_j ÷ all GPUs + foresight)

`foresight` stands for the jobs still to come. A group is worth Σ rate_j × worth_j, and the groups are chosen for the
largest sum, in four steps (exact optimisation is a knapsack over set packing):

1. *Start.* Each job in order gets GPUs of its own if they fit.
2. *Join.* Each waiting job in order joins the group of its size (its GPU count) that gains most by it, if any gains.
3. *Trade.* Sizes trade GPUs while that gains: more groups of one size for fewer of another.
4. *Polish.* Within a size, jobs leave, move or swap places while that gains.

All steps but the first stop when a budget of comparisons is spent, counted and not timed: same input, same groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prefect_gpu.papers.muri.gang_packing import Packing
from prefect_gpu.papers.muri.interleaving import Interleaving
from prefect_gpu.papers.muri.sharers import LEAST_GAIN, Sharers

FORESIGHT = 0.25
BUDGET = 20_000


def worths(gpus: Sequence[int], total_gpus: int, foresight: float = FORESIGHT) -> list[float]:
    """What a second less of each job takes off the sum of completion times, in seconds.

    Args:
        gpus: GPUs of each job, the first to be served first.
        total_gpus: GPUs of the cluster.
        foresight: Jobs expected to come while these run, per GPU of the cluster.

    Raises:
        ValueError: If a job asks for no GPU, the cluster has none or foresight is negative.
    """
    if total_gpus < 1:
        raise ValueError(f"total_gpus is {total_gpus!r}: give at least 1.")
    if foresight < 0:
        raise ValueError(f"foresight is {foresight!r}: give at least 0.")
    for count in gpus:
        if count < 1:
            raise ValueError(f"gpus holds {count!r}: jobs that need no GPU do not share one, leave them out.")
    last = len(gpus) - 1
    return [1.0 + count * ((last - place) / total_gpus + foresight) for place, count in enumerate(gpus)]


def form_groups(
    gpus: Sequence[int],
    profiles: Sequence[int],
    node_gpus: Sequence[int],
    model: Interleaving,
    *,
    foresight: float = FORESIGHT,
    budget: int = BUDGET,
) -> list[tuple[int, ...]]:
    """The groups that run now; a job alone on its GPUs is a group of one.

    Args:
        gpus: GPUs of each job, in the order of service, the most urgent first.
        profiles: The number that `model` gave to each job's profile.
        node_gpus: GPUs of each node.
        model: How fast mixtures advance.
        foresight: Jobs expected to come while these run, per GPU of the cluster.
        budget: Comparisons to spend, about 0.3 µs each; jobs not looked at before it is spent do not share this time.

    Returns:
        Groups of positions in `gpus`: placed in this order, each on the fullest node that fits (see `Packing`), all of
        them fit. Wide ones come first if all fit so, otherwise the sizes come in the order of service. Jobs that leave
        their group because GPUs were left over come last.

    Raises:
        ValueError: If the lists differ in length, or as `worths` does.
    """
    if len(gpus) != len(profiles):
        raise ValueError(f"gpus and profiles hold {len(gpus)} and {len(profiles)} jobs: give one of each per job.")
    if not gpus:
        return []
    starts, packing = _start(gpus, node_gpus)
    if not starts:
        return []
    worth = worths(gpus, sum(node_gpus), foresight)
    members: dict[int, list[int]] = {}
    for job, count in enumerate(gpus):
        members.setdefault(count, []).append(job)
    sizes = {
        count: Sharers([(job, profiles[job], worth[job]) for job in jobs], model, budget // (2 * len(members)))
        for count, jobs in members.items()
    }
    started = Counter(starts)
    # Sizes are tried in a fixed order, so that equal gains are settled alike every time.
    counts = {count: started[count] for count in sorted(sizes)}
    _trade(counts, sizes, packing, budget // 2)
    groups: dict[int, Iterator[tuple[int, ...]]] = {}
    for count in sorted(sizes, reverse=True):
        left = budget - sum(sharers.spent for sharers in sizes.values())
        groups[count] = iter(sizes[count].polished(counts[count], left))
    order = sorted(Counter(counts).elements(), reverse=True)
    if not packing.holds(counts):
        # Jobs of 3, 3, 2, 4, 2 and 2 GPUs fill two nodes of 8 in this order, but not if the widest goes first. Trades
        # are only made for what fits wide ones first, so nothing was traded and the order of service still fits.
        order = starts
    return _spread([next(groups[count]) for count in order], gpus, packing)


def _spread(groups: list[tuple[int, ...]], gpus: Sequence[int], empty: Packing) -> list[tuple[int, ...]]:
    """Nobody shares while GPUs are free that it could have alone: the last of a group leaves it, as long as that fits.

    Trading looks for this as well, but may spend its budget before it is done.
    """
    filling = empty.copy()
    for group in groups:
        filling.take(gpus[group[0]])
    alone: list[tuple[int, ...]] = []
    for at, group in enumerate(groups):
        while len(group) > 1 and filling.take(gpus[group[0]]):
            *group, left = group  # type: ignore[assignment]
            alone.append((left,))
        groups[at] = tuple(group)
    return groups + alone


def _start(gpus: Sequence[int], node_gpus: Sequence[int]) -> tuple[list[int], Packing]:
    """The sizes of the jobs that run when each in order gets GPUs of its own, in that order, and the empty cluster."""
    empty = Packing(node_gpus)
    filling = empty.copy()
    starts: list[int] = []
    failed: set[int] = set()
    for count in gpus:
        if count in failed:
            continue
        if filling.take(count):
            starts.append(count)
            if filling.free == 0:
                break
        else:
            failed.add(count)  # GPUs only get fewer: no later job of this size fits either
    return starts, empty


def _trade(counts: dict[int, int], sizes: dict[int, Sharers], empty: Packing, budget: int) -> None:
    """Changes `counts` (groups per size) while the worth of all groups rises and the budget lasts."""
    while True:
        best_gain, best = LEAST_GAIN, None
        free = empty.free - sum(size * count for size, count in counts.items())
        for gains in sizes:
            for gives in (None, *sizes):
                if gives == gains:
                    continue
                more, fewer = _exchange(gains, gives, counts, free, len(sizes[gains].jobs))
                if more <= 0:
                    continue
                if sum(sharers.spent for sharers in sizes.values()) > budget:
                    return
                changed = {gains: counts[gains] + more}
                if gives is not None:
                    changed[gives] = counts[gives] - fewer
                gain = sum(sizes[size].value(new) - sizes[size].value(counts[size]) for size, new in changed.items())
                if gain > best_gain and empty.holds({**counts, **changed}):
                    best_gain, best = gain, changed
        if best is None:
            return
        counts.update(best)


def _exchange(gains: int, gives: int | None, counts: dict[int, int], free: int, jobs: int) -> tuple[int, int]:
    """Groups that one size gets more and another fewer in the smallest exchange; (0, 0) where there is none."""
    if gives is None:
        more, fewer = free // gains, 0
    elif gains >= gives:
        more, fewer = 1, -(-(gains - free) // gives)
    else:
        more, fewer = (gives + free) // gains, 1
    if gives is not None and not 0 < fewer <= counts[gives]:
        return 0, 0
    return min(more, jobs - counts[gains]), fewer
