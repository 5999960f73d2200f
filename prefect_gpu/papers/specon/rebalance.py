"""SpeCon's Algorithm 3: hosts are evened out once all of their runs have converged."""

from __future__ import annotations

import math
from collections.abc import Sequence

from prefect_gpu.scheduling.sharing.convergence import Category, Move, Watched


def rebalance(hosts: Sequence[str], runs: Sequence[Watched], now_s: float) -> list[Move]:
    """Algorithm 3: even out the hosts once every active run has converged.

    With idle hosts, each takes runs up to the balance factor bf = floor(runs / hosts); without, hosts with fewer than
    bf - 1 runs take up to that. The run with the smallest converged duration moves first, since it has the most left to
    do. Each run is rebalanced at most once.

    The printed algorithm may take a host's only run to an idle one. Here only hosts above bf give.

    Args:
        hosts: All hosts, idle ones included.
        runs: Every active run.
        now_s: The current time, in seconds on the clock of ``marked_at``.
    """
    if not hosts or any(run.category is not Category.CONVERGED for run in runs):
        return []
    where = {run.id: run.host for run in runs}
    load = {host: sum(run.host == host for run in runs) for host in hosts}
    factor = len(runs) // len(load)
    idle = [host for host, count in load.items() if count == 0]
    goal = factor if idle else factor - 1
    takers = idle or [host for host, count in load.items() if count < goal]
    free = [run for run in runs if run.movable and run.evened_at == -math.inf]
    by_duration = [run.id for run in sorted(free, key=lambda run: now_s - run.marked_at)]
    moves: list[Move] = []
    for taker in takers:
        while load[taker] < goal:
            chosen = next((run for run in by_duration if load[where[run]] > factor), None)
            if chosen is None:
                return moves
            by_duration.remove(chosen)
            load[where[chosen]] -= 1
            load[taker] += 1
            reason = f"all runs have converged, and {taker} has fewer"
            moves.append(Move(chosen, where[chosen], taker, reason))
    return moves
