"""How short could the mean completion time be in the world ``cluster``, whoever decides?

    python -m benchmarks.frontier.bound --traces DIR [--quick] [--json]

Two lower bounds for each case of :mod:`benchmarks.frontier.cluster`, of which the larger counts. Both hold even for
those who know every arrival beforehand, stop and move jobs for nothing, and never mind which node a device is on. So
they may be out of reach.

*One machine.* All devices together are one fast machine, which works on the job of least work first. No schedule has a
smaller sum of mean busy times: the moments around which the work on a job is done. And no job ends earlier than half of
its length after that moment. This is close where many jobs wait.

*Prices.* Each second of a device has a price, which changes with time. Let each job alone choose its seconds, so that
its completion time plus what it pays is least, and take from the sum of that what all devices would earn if none was
ever idle. No schedule has a smaller sum of completion times: its jobs pay no more than the devices can earn, and no job
does better than by its own choice. This holds at any prices (it is Lagrange's relaxation of the number of devices).
Good ones are found by raising them where more is bought than there is. This is close where few jobs wait.
"""

from __future__ import annotations

import heapq
import math
import os
import statistics
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._claims import at_most, command_line, report
from benchmarks.frontier.cluster import CASES, GPUS_PER_NODE, Case, Measured
from prefect_gpu.papers.from_trace import select

BINS, ROUNDS = 300, 80
OVER_BEST = "lower bound over best of SRSF, SRTF"
_STEP, _KEPT = 0.5, 0.8  # of a change of prices, and of the direction of the changes before it
_QUICK = ("cluster10", "trace3")


class Work(NamedTuple):
    """A job: when it comes, how many devices it needs, and for how many seconds: more than 0."""

    release_s: float
    devices: int
    length_s: float


def lower_bound_s(jobs: Sequence[Work], devices: int, bins: int = BINS, rounds: int = ROUNDS) -> float:
    """No schedule has a smaller mean completion time, counted from release, in seconds.

    Args:
        jobs: By their release.
        bins: Stretches of time in which prices are constant: the more, the closer the bound.
        rounds: How often prices are made better.
    """
    bound_s, ends = on_one_machine(jobs, devices)
    latest = [max(end, job.release_s + job.length_s) for end, job in zip(ends, jobs, strict=True)]
    moments = sorted([*(job.release_s for job in jobs), *ends, *latest])
    edges = sorted({moments[at * (len(moments) - 1) // bins] for at in range(bins + 1)})
    releases, ends = sorted(job.release_s for job in jobs), sorted(ends)
    prices = [(bisect_right(releases, edge) - bisect_right(ends, edge)) / devices for edge in edges[:-1]]
    trend = [0.0] * len(prices)
    for number in range(rounds):
        found_s, bought = at_prices(jobs, devices, edges, prices)
        bound_s = max(bound_s, found_s)
        for at, price in enumerate(prices):
            excess = min(1.0, bought[at] / (devices * (edges[at + 1] - edges[at])) - 1.0)
            trend[at] = _KEPT * trend[at] + (1.0 - _KEPT) * excess
            step = _STEP * (1.0 - number / rounds) * trend[at]
            prices[at] = max(0.0, price + step * (price + 1.0 / devices))
    return bound_s


def on_one_machine(jobs: Sequence[Work], devices: int) -> tuple[float, list[float]]:
    """The bound by mean busy times, in seconds, and when each job ends on that machine."""
    ends, halves_s = [0.0] * len(jobs), 0.0
    left: list[tuple[float, int, float]] = []  # seconds on the machine: all, and those that are left
    now, following = 0.0, 0
    while left or following < len(jobs):
        if not left:
            now = max(now, jobs[following].release_s)
        while following < len(jobs) and jobs[following].release_s <= now:
            all_s = jobs[following].devices * jobs[following].length_s / devices
            heapq.heappush(left, (all_s, following, all_s))
            following += 1
        all_s, at, left_s = heapq.heappop(left)
        until = jobs[following].release_s if following < len(jobs) else math.inf
        ran_s = min(left_s, until - now)
        halves_s += ran_s / all_s * (now + ran_s / 2)
        now += ran_s
        if ran_s < left_s:
            heapq.heappush(left, (all_s, at, left_s - ran_s))
        else:
            ends[at] = now
    return halves_s / len(jobs) + statistics.fmean(job.length_s / 2 - job.release_s for job in jobs), ends


def at_prices(
    jobs: Sequence[Work], devices: int, edges: Sequence[float], prices: Sequence[float]
) -> tuple[float, list[float]]:
    """The bound at these prices, in seconds, and how many device-seconds are bought between two edges.

    Args:
        edges: The moments at which prices change, one more than prices; outside, a device costs nothing.
    """
    bought, total_s = [0.0] * (len(prices) + 1), 0.0
    for job in jobs:
        cost_s, chosen = _choice(job, edges, prices)
        total_s += cost_s
        for _, at, seconds in chosen:
            bought[at] += job.devices * seconds
    earned_s = devices * sum(
        price * (last - first) for price, first, last in zip(prices, edges, edges[1:], strict=False)
    )
    return (total_s - earned_s) / len(jobs), bought


def _choice(job: Work, edges: Sequence[float], prices: Sequence[float]) -> tuple[float, list[tuple[float, int, float]]]:
    """What the job's best choice costs, and the choice: (-price, between which edges, seconds)."""
    release_s, width, missing_s = job
    at = max(0, bisect_right(edges, release_s) - 1)
    held: list[tuple[float, int, float]] = []  # the cheapest seconds until now, the dearest first
    best, chosen, paid = math.inf, held, 0.0
    while at <= len(prices):
        start = max(edges[at], release_s)
        if start - release_s >= best:
            break
        price, room_s = (prices[at], edges[at + 1] - start) if at < len(prices) else (0.0, math.inf)
        taken_s = min(missing_s, room_s)
        missing_s -= taken_s
        paid += taken_s * price
        while not missing_s:
            cost = start + taken_s - release_s + width * paid
            if taken_s and cost < best:
                best, chosen = cost, [*held, (-price, at, taken_s)]
            if not held or taken_s >= room_s or -held[0][0] <= price:
                break
            dearest, when, seconds = held[0]
            swapped_s = min(seconds, room_s - taken_s)
            taken_s += swapped_s
            paid += swapped_s * (price + dearest)
            if swapped_s < seconds:
                heapq.heapreplace(held, (dearest, when, seconds - swapped_s))
            else:
                heapq.heappop(held)
        if taken_s:
            heapq.heappush(held, (-price, at, taken_s))
        at += 1
    return best, chosen


def bound_of(case: Case, measured: Measured) -> float:
    """The bound of one case, in seconds."""
    fitting = select(measured.jobs(case.file), case.nodes * GPUS_PER_NODE).jobs
    return lower_bound_s(
        sorted(Work(job.submit_s, job.gpus, job.duration_s) for job in fitting), case.nodes * GPUS_PER_NODE
    )


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="the smallest three cases")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    measured, bounds_s, ratios = Measured(options.traces), dict[str, int](), dict[str, float]()
    for case in CASES:
        if options.quick and Path(case.file).stem not in _QUICK:
            continue
        try:
            bound_s = bound_of(case, measured)
        except FileNotFoundError as error:
            parser.error(str(error))
        best_s = min(measured.figures(case, rival).mean_s for rival in ("srsf", "srtf"))
        bounds_s[case.name], ratios[case.name] = round(bound_s), round(bound_s / best_s, 4)
        print(f"  {case.name}: at least {bound_s:,.0f} s", file=sys.stderr, flush=True)
    name = f"cluster: {OVER_BEST}, geometric mean: what is asked of ours is not excluded"
    claims = [at_most(name, statistics.geometric_mean(ratios.values()), 0.970)]
    details = {"mean JCT at least, in s": bounds_s, OVER_BEST: ratios}
    return report("bound", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
