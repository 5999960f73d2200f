"""Is a pool divided as its owners are promised, and what does that cost?

Three owners with weights 2:1:1 come in bursts, and are away for half days. They ask for as much as each other, so one
of them asks for less than its share and two for more. A week is simulated under `adaptive`, with shares and without,
and a meter of its own counts what each had and was owed over the half-life.

- *Shares*: as long as more is asked for than there is, what each owner has had differs from what it was owed by at
  most 5 % of all that was had.
- *Guarantees*: whoever holds less than is guaranteed to it, while a run of its waits that would fit, waits for one
  checkpoint of the borrower at most.
- *Cost*: the mean job completion time is at most 3 % longer than without shares.

The last one contradicts the first where the pool is busy: whoever asks for more than its share has short runs that wait
for long runs of others, which is what shares are for. So it is measured at two loads.

    python -m benchmarks.fairness [--json] [--quick] [--live]

With --live, ten minutes of real trainings on virtual devices beside it: see ``live.py``.
"""

from __future__ import annotations

import statistics
import sys
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
_ROUNDING_S = 0.1


def at_load(load: float, days: float, half_life_s: float, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Some draws of the workload at one load: without shares, with weights, and with guarantees as well."""
    devices = NODES * 8
    rows: dict[str, list[Found]] = {"without": [], "weights": [], "guarantees": []}
    for seed in seeds:
        jobs = bursts(days, devices, load, seed)
        for name, found in rows.items():
            shares = promised(half_life_s, devices, guarantees=name == "guarantees")
            found.append(simulate(jobs, NODES, shares, told=name != "without"))
    return {name: [asdict(one) for one in found] for name, found in rows.items()}


def claims_of(load: float, rows: dict[str, Any]) -> list[Claim]:
    """What is claimed at one load, for the worst of the draws; the cost for all of them together."""
    told = [*rows["weights"], *rows["guarantees"]]
    cost = statistics.fmean(
        one["mean_jct_s"] / plain["mean_jct_s"] for one, plain in zip(rows["weights"], rows["without"], strict=True)
    )
    at = f"at load {load:g}"
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
    for load in LOADS[:1] if options.quick else LOADS:
        rows = at_load(load, 2.0, DAY / 4, SEEDS[:1]) if options.quick else at_load(load, 7.0, DAY, SEEDS)
        claims += claims_of(load, rows)
        details[f"load {load:g}"] = rows
    if options.live:
        from benchmarks.fairness.live import live_claims, measure

        details["live"] = measure(120.0 if options.quick else 600.0)
        claims += live_claims(details["live"])
    return report("fairness", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
