"""What does it bring to know who slows whom down, where gangs and network are real?

Four nodes of three devices on this machine: network namespaces with links of 200 Mbit/s (``tc tbf``). Gangs of four
workers, PyTorch's DistributedDataParallel over gloo, so that none fits a node and nobody can avoid the network: loud
ones, middling ones and quiet ones, 40 in all, which are all there at 0. ``deepshare-hybrid`` and ``adaptive`` run them
against ``las`` and ``srtf``, each by its name and as it is.

How much the classes slow each other down is measured first, by the controller as in production: seven gangs train alone
and beside each other. Every policy begins with that, as a worker begins with its pool's history.
All are told how long each gang trains alone. No gang may be stopped, so that ``las`` is first come, first served. With
``--stops`` each can be, at a checkpoint; ``las`` then lets them take turns, of a second or so.

    python -m benchmarks.contention_live [--repeats N] [--stops] [--json] [--quick]
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from benchmarks._claims import Claim, below, command_line, report
from benchmarks._gangs.cluster import Cluster, add_options, in_lab
from benchmarks._gangs.pool import Outcome
from benchmarks.contention_live import workload
from benchmarks.contention_live.predicted import ends_of, many_orders
from benchmarks.contention_live.sensitivities import Row, by_class, learned, measured
from prefect_gpu.papers.patience import without_patience
from prefect_gpu.scheduling.model import events as ev

OURS, THEIRS = ("deepshare-hybrid", "adaptive"), ("las", "srtf")
QUICK = ("las", "adaptive")
_FIRST_SEED = 1


@dataclass
class Found:
    """What was measured.

    Attributes:
        alone: Of the gangs that were measured in pairs.
        on_the_way: By policy, of the gangs that it ran.
        jct_s: Mean time from submission to completion by policy, for each repeat.
        many_orders: What the simulator says of the changes in ten orders.
    """

    alone: list[Row] = field(default_factory=list)
    on_the_way: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    jct_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    runs: list[dict[str, Any]] = field(default_factory=list)
    many_orders: dict[str, dict[str, float]] = field(default_factory=dict)

    def change(self, ours: str, theirs: str) -> float:
        """By how many per cent the mean time to completion differs: the mean of the repeats."""
        pairs = zip(self.jct_s[ours], self.jct_s[theirs], strict=True)
        return statistics.mean(100.0 * (one / other - 1.0) for one, other in pairs)


async def run(cluster: Cluster, repeats: int, *, quick: bool, stops: bool) -> Found:
    """First the sensitivities, then all policies, by turns, beginning with another one each time."""
    found = Found()
    chain = workload.QUICK_CHAIN if quick else workload.CHAIN
    found.alone = await measured(cluster, chain, both_ways=not quick)
    logging.info("%s", by_class(found.alone))
    pairs = learned(found.alone)
    everybody: list[Outcome] = []
    names = QUICK if quick else (*THEIRS, *OURS)
    for repeat in range(repeats):
        gangs = workload.gangs(_FIRST_SEED + repeat, quick=quick, preemptible=stops)
        turn = repeat % len(names)
        for name in (*names[turn:], *names[:turn]):
            async with cluster.pool(without_patience(name), stops=stops) as pool:
                pool.controller.handle(ev.ContentionLearned(pairs))
                outcomes = await pool.run(gangs)
                rows = [{**asdict(row), "run_id": f"{repeat}-{row.run_id}"} for row in pool.contention]
            everybody += outcomes
            found.on_the_way[name] += rows
            found.jct_s[name].append(statistics.mean(one.jct_s for one in outcomes))
            found.runs.append(_told(name, repeat, outcomes))
            logging.info("%s", {key: value for key, value in found.runs[-1].items() if key != "gangs"})
    if not quick:
        found.many_orders = many_orders(cluster, OURS, THEIRS, pairs, ends_of(everybody))
    return found


def _told(name: str, repeat: int, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    jct_s = sorted(one.jct_s for one in outcomes)
    stretched: dict[str, list[float]] = defaultdict(list)
    for one in outcomes:
        if not one.step_s:  # it was stopped after its last step
            continue
        stretched[one.gang.program.name].append(statistics.mean(one.step_s) / workload.step_s(one.gang.program))
    return {
        "policy": name,
        "repeat": repeat,
        "mean_jct_s": round(statistics.mean(jct_s), 2),
        "p90_jct_s": round(jct_s[int(0.9 * (len(jct_s) - 1))], 2),
        "makespan_s": round(max(one.ended_s for one in outcomes), 2),
        "mean_trained_s": round(statistics.mean(one.trained_s for one in outcomes), 2),
        "step_against_alone": {program: round(statistics.mean(some), 2) for program, some in stretched.items()},
        "stops": sum(one.stops for one in outcomes),
        "processor_s": round(sum(one.cpu_s for one in outcomes), 1),
        "gangs": [
            {
                "program": one.gang.program.name,
                "alone_s": one.gang.estimate.service_s,
                "trained_s": round(one.trained_s, 2),
                "jct_s": round(one.jct_s, 2),
                "step_s": round(statistics.median(one.step_s), 3) if one.step_s else None,
                "stops": one.stops,
                "nodes": " ".join(one.nodes),
            }
            for one in sorted(outcomes, key=lambda one: one.granted_s)
        ],
    }


def claims_of(found: Found, *, quick: bool = False) -> list[Claim]:
    """Each of ours is done sooner than each of theirs, on average. Six short gangs: `adaptive` against LAS."""
    return [
        below(f"{ours} against {theirs}, mean JCT, percent", round(found.change(ours, theirs), 2), 0)
        for ours in OURS
        for theirs in THEIRS
        if not quick or {ours, theirs} == {*QUICK}
    ]


def details_of(found: Found) -> dict[str, Any]:
    """All figures: medians of the repeats, sensitivities by pair of classes, ten orders simulated, and each run."""
    of = {name: [one for one in found.runs if one["policy"] == name] for name in found.jct_s}
    keys = ("mean_jct_s", "p90_jct_s", "makespan_s", "mean_trained_s", "stops")
    return {
        "table": {
            name: {key: round(statistics.median(one[key] for one in runs), 2) for key in keys}
            for name, runs in of.items()
        },
        "slowdowns": by_class(found.alone),
        "slowdowns_on_the_way": {name: by_class(rows) for name, rows in found.on_the_way.items()},
        "mean_jct_change_percent_in_ten_orders_simulated": found.many_orders,
        "runs": found.runs,
    }


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="six short gangs, one pair, adaptive against LAS: about a minute")
    parser.add_argument("--repeats", type=int, default=1, help="how often, each time in another order (default: 1)")
    parser.add_argument("--stops", action="store_true", help="gangs may be stopped, at a checkpoint")
    add_options(parser, "pgv", "10.79.0")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}: give 1 or more")
    began, repeats = time.monotonic(), 1 if options.quick else options.repeats
    found = in_lab(options, workload.SHAPE, partial(run, repeats=repeats, quick=options.quick, stops=options.stops))
    details = {**details_of(found), "stops": options.stops, "took_s": round(time.monotonic() - began, 1)}
    return report("contention, live", claims_of(found, quick=options.quick), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
