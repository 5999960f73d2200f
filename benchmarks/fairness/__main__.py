"""Is a pool divided as its owners are promised, and what does that cost?

Three owners with weights 2:1:1 come in bursts, and are away for half days. A week is simulated under `adaptive`, with
shares and without, and a meter of its own counts what each had and was owed over the half-life. There are two
workloads, with the same bursts and absences: in the one, owners ask for as much as each other, so one of them asks for
less than its share and two for more; in the other, they ask in proportion to their weights.

- *Shares*: as long as more is asked for than there is, what each owner has had differs from what it was owed by at
  most 5 % of all that was had.
- *Guarantees*: whoever holds less than is guaranteed to it, while a run of its waits that would fit, waits for one
  checkpoint of the borrower at most.
- *Cost*: the mean job completion time is at most 3 % longer than without shares.

The last one contradicts the first where owners ask for as much as each other and the pool is busy: whoever asks for
more than its share has short runs that wait for long runs of others, which is what shares are for. So it is measured at
two loads, and docs/policies/shares.md has an example in which no policy could do it.

    python -m benchmarks.fairness [--json] [--quick] [--live]

With --live, ten minutes of real trainings on virtual devices beside it: see ``live.py``. With --quick they are two, and
the half-life is shorter than many a training, so that shares are not kept.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import Any

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks.fairness.simulated import Found, simulate
from benchmarks.fairness.workload import CHECKPOINT_S, DAY, bursts, promised

NODES = 2
LOADS = (0.5, 0.7)
SEEDS = (1, 2, 3)
WITHIN = 0.05
DEARER = 1.03
HOW = ("without", "weights", "guarantees")
_ROUNDING_S = 0.1


def simulated(case: tuple[bool, float, int, str], days: float, half_life_s: float) -> Found:
    """One draw of one workload: without shares, with weights, or with guarantees as well."""
    by_weight, load, seed, how = case
    devices = NODES * 8
    shares = promised(half_life_s, devices, guarantees=how == "guarantees")
    return simulate(bursts(days, devices, load, seed, by_weight=by_weight), NODES, shares, told=how != "without")


def all_of(
    loads: Iterable[float], seeds: Iterable[int], days: float, half_life_s: float
) -> dict[tuple[bool, float], dict[str, list[Any]]]:
    """All draws, as many at a time as there are cores: by workload and load, and by how it was divided."""
    cases = list(itertools.product((False, True), loads, seeds, HOW))
    found: dict[tuple[bool, float], dict[str, list[Any]]] = {}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        played = pool.map(simulated, cases, itertools.repeat(days), itertools.repeat(half_life_s))
        for (by_weight, load, _, how), one in zip(cases, played, strict=True):
            found.setdefault((by_weight, load), {name: [] for name in HOW})[how].append(asdict(one))
    return found


def named(by_weight: bool, load: float) -> str:
    """A workload at a load, in words."""
    return f"at load {load:g}{', asked for by weight' if by_weight else ''}"


def claims_of(at: str, rows: dict[str, list[Any]]) -> list[Claim]:
    """What is claimed of one workload at one load, for the worst of the draws; the cost for all of them together."""
    told = [*rows["weights"], *rows["guarantees"]]
    cost = statistics.fmean(
        one["mean_jct_s"] / plain["mean_jct_s"] for one, plain in zip(rows["weights"], rows["without"], strict=True)
    )
    return [
        at_most(f"largest difference of had and owed, {at}", max(one["worst_gap"] for one in told), WITHIN),
        at_most(
            f"longest wait for what is guaranteed, {at}: seconds",
            round(max(one["longest_lack_s"] for one in rows["guarantees"]), 3),
            CHECKPOINT_S + _ROUNDING_S,
        ),
        at_most(f"mean JCT over that without shares, {at}", cost, DEARER),
        at_least(
            f"largest difference without shares, {at}: there is something to divide",
            max(one["worst_gap"] for one in rows["without"]),
            WITHIN,
        ),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="two days, one draw, one load: less than a minute")
    parser.add_argument("--live", action="store_true", help="ten minutes of real trainings, too (with --quick: two)")
    options = parser.parse_args()
    claims: list[Claim] = []
    details: dict[str, Any] = {}
    quick = options.quick
    found = all_of(LOADS[:1], SEEDS[:1], 2.0, DAY / 4) if quick else all_of(LOADS, SEEDS, 7.0, DAY)
    for (by_weight, load), rows in found.items():
        at = named(by_weight, load)
        claims += claims_of(at, rows)
        details[at] = rows
    if options.live:
        from benchmarks.fairness.live import live_claims, measure

        details["live"] = measure(120.0 if options.quick else 600.0)
        claims += live_claims(details["live"])
    return report("fairness", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
