"""What does placement by the network bring where the network is real?

Four nodes in two racks on this machine: network namespaces, with links of 1 Gbit/s to the nodes and of 200 Mbit/s
between the racks (``tc tbf``). Gangs of 2 and 3 workers, PyTorch's DistributedDataParallel over gloo, arrive one by one
(immediate mode) or all at once (batch mode), under our profile ``ahead``, under Liquid's policies as published, and
under three others, by turns. Beside what was measured stands what the simulator says; it is told only how long gangs'
steps take alone. The scheduler is told that, too, as in a pool that has seen the programs before: ``ahead`` uses it.

    python -m benchmarks.network_placement [--repeats N] [--containers] [--json] [--quick]
"""

from __future__ import annotations

import itertools
import logging
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks._gangs.cluster import Cluster, add_options, in_lab
from benchmarks._gangs.pool import Outcome
from benchmarks.network_placement import workload
from benchmarks.network_placement.predicted import Alone, figures, measure, simulate, told

METRICS = ("mean JCT, s", "makespan, s")
_FIRST_SEED = 1
_ORDERS = 30


@dataclass
class Found:
    """Mean JCT and makespan of each run, in seconds, by mode and policy, one for each repeat."""

    measured: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    simulated: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    runs: list[dict[str, Any]] = field(default_factory=list)
    alone: Alone = field(default_factory=Alone)
    many_orders: dict[str, float] = field(default_factory=dict)

    def shorter(self, mode: str, other: str, metric: int, simulated: bool = False) -> float:
        """By how many per cent ours is shorter than another's: the median of the repeats, each in its own order."""
        times = self.simulated if simulated else self.measured
        pairs = zip(times[mode, "ours"], times[mode, other], strict=True)
        return statistics.median(100.0 * (1.0 - ours[metric] / theirs[metric]) for ours, theirs in pairs)

    def off(self, mode: str, policy: str, metric: int) -> float:
        """By how many per cent the simulated figure is away from the measured one, both means of the repeats."""
        real, said = (
            statistics.mean(one[metric] for one in times[mode, policy]) for times in (self.measured, self.simulated)
        )
        return 100.0 * (said / real - 1.0)


async def run(cluster: Cluster, modes: tuple[str, ...], repeats: int, quick: bool) -> Found:
    """All policies, by turns, beginning with another one each time."""
    found = Found()
    kinds = workload.QUICK_MIX if quick else workload.MIX
    found.alone = await measure(cluster, kinds, steps=3 if quick else 8)
    for repeat in range(repeats):
        for mode in modes:
            gangs = told(workload.gangs(mode, _FIRST_SEED + repeat, quick), found.alone)
            makers = list(workload.profiles(mode, quick).items())
            turn = repeat % len(makers)
            for name, make in (*makers[turn:], *makers[:turn]):
                outcomes = await cluster.run(gangs, make())
                measured, simulated = figures(outcomes), simulate(gangs, make(), cluster, found.alone)
                found.measured[mode, name].append(measured)
                found.simulated[mode, name].append(simulated)
                found.runs.append(_told(mode, name, repeat, measured, simulated, outcomes, cluster))
                logging.info("%s", {key: value for key, value in found.runs[-1].items() if key != "gangs"})
    if not quick:
        found.many_orders = many_orders(cluster, found.alone, modes)
    return found


def many_orders(cluster: Cluster, alone: Alone, modes: tuple[str, ...]) -> dict[str, float]:
    """By how many per cent ours, and Liquid's, is shorter in 30 orders, simulated: whether the measured were lucky.

    The mean of the orders and of the other policies, for each mode and metric.
    """
    shorter: dict[str, list[float]] = defaultdict(list)
    for mode in modes:
        for seed in range(_FIRST_SEED, _FIRST_SEED + _ORDERS):
            gangs = told(workload.gangs(mode, seed), alone)
            said = {name: simulate(gangs, make(), cluster, alone) for name, make in workload.profiles(mode).items()}
            for (one, words), other in itertools.product((("ours", ""), ("liquid", ", as published")), workload.OTHERS):
                for at, metric in enumerate(METRICS):
                    part = 1.0 - said[one][at] / said[other][at]
                    shorter[f"{metric.partition(',')[0]}, {mode}{words}"].append(100.0 * part)
    return {name: round(statistics.mean(values), 1) for name, values in shorter.items()}


def _told(
    mode: str,
    name: str,
    repeat: int,
    measured: tuple[float, float],
    simulated: tuple[float, float],
    outcomes: list[Outcome],
    cluster: Cluster,
) -> dict[str, Any]:
    racks = {node.id: node.rack for node in cluster.nodes}
    return {
        "mode": mode,
        "policy": name,
        "repeat": repeat,
        "mean_jct_s": round(measured[0], 2),
        "makespan_s": round(measured[1], 2),
        "simulated_mean_jct_s": round(simulated[0], 2),
        "simulated_makespan_s": round(simulated[1], 2),
        "across_racks": sum(len({racks[node] for node in one.nodes}) > 1 for one in outcomes),
        "processor_s": round(sum(one.cpu_s for one in outcomes), 1),
        "gangs": [
            {
                "program": one.gang.program.name,
                "nodes": " ".join(one.nodes),
                "waited_s": round(one.granted_s - one.submitted_s, 2),
                "jct_s": round(one.jct_s, 2),
                "step_s": round(statistics.median(one.step_s), 3),
            }
            for one in outcomes
        ],
    }


def claims_of(found: Found, modes: tuple[str, ...], quick: bool = False) -> list[Claim]:
    """What is asked of ours: Liquid's headlines, over both modes and each alone, and the simulator's nearness.

    Four short gangs, which all find room at once, are only compared with random placement; and of their few seconds,
    starting and ending are so large a part that nothing is asked of the simulator.
    """
    against = workload.OTHERS[:1] if quick else workload.OTHERS
    words = "random placement's" if quick else "the others'"
    names = [f"{metric.partition(',')[0]} shorter than {words}, %" for metric in METRICS]

    def mean(metric: int, among: tuple[str, ...]) -> float:
        return statistics.mean(found.shorter(mode, other, metric) for mode in among for other in against)

    claims = [at_least(f"{names[0]}, all", mean(0, modes), 18.0), at_least(f"{names[1]}, all", mean(1, modes), 21.0)]
    if quick:
        return claims
    if len(modes) > 1:
        claims.append(at_least(f"{names[0]}, immediate mode", mean(0, ("immediate",)), 18.0))
        claims.append(at_least(f"{names[1]}, batch mode", mean(1, ("batch",)), 21.0))
    policies = ("ours", "liquid", *workload.OTHERS)
    away = [abs(found.off(mode, policy, metric)) for mode in modes for policy in policies for metric in (0, 1)]
    return [*claims, at_most("simulated against measured, largest difference of all, %", max(away), 15.0)]


def table_of(found: Found, modes: tuple[str, ...], quick: bool = False) -> list[dict[str, Any]]:
    """Medians of the repeats for each mode and policy, measured and simulated."""
    rows = []
    for mode in modes:
        for policy in workload.profiles(mode, quick):
            row: dict[str, Any] = {"mode": mode, "policy": policy}
            for at, metric in enumerate(METRICS):
                for word, times in (("measured", found.measured), ("simulated", found.simulated)):
                    row[f"{metric} ({word})"] = round(statistics.median(one[at] for one in times[mode, policy]), 2)
                row[f"{metric} (simulated, off by %)"] = round(found.off(mode, policy, at), 1)
                if policy != "ours":
                    row[f"{metric} (ours shorter by %)"] = round(found.shorter(mode, policy, at), 1)
                    row[f"{metric} (shorter by %, simulated)"] = round(found.shorter(mode, policy, at, True), 1)
            rows.append(row)
    return rows


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="batch mode once, four short gangs: under a minute")
    parser.add_argument("--repeats", type=int, default=2, help="how often, each time in another order (default: 2)")
    parser.add_argument(
        "--containers", action="store_true", help="each instance is a container of a Swarm, with a cold interpreter"
    )
    add_options(parser, "pgn", "10.78.0")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}: give 1 or more")
    modes = ("batch",) if options.quick else workload.MODES
    began, repeats = time.monotonic(), 1 if options.quick else options.repeats
    work = partial(run, modes=modes, repeats=repeats, quick=options.quick)
    found = in_lab(options, workload.SHAPE, work, containers=options.containers)
    details = {
        "table": table_of(found, modes, options.quick),
        "alone": {
            "step_s": {
                f"{program} x {size}": {
                    "node": round(i.node_s, 3),
                    "rack": round(i.rack_s, 3),
                    "across": round(i.across_s, 3),
                }
                for (program, size), i in found.alone.iterations.items()
            },
            "launching_s": round(found.alone.launching_s, 2),
            "saving_s": round(found.alone.saving_s, 2),
        },
        "shorter_by_percent_in_30_orders_simulated": found.many_orders,
        "runs": found.runs,
        "took_s": round(time.monotonic() - began, 1),
    }
    return report("network placement", claims_of(found, modes, options.quick), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
