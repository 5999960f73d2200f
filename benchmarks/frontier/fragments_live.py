"""What fragments bring the live scheduler: ``adaptive`` in our own world, with and without ``KeepWorth``.

    python -m benchmarks.frontier.fragments_live [--quick] [--json]

Jobs that ask for less than a node are drawn: whole devices, or parts of one. The nodes are alike, or two of five have
four small devices, which cannot hold every job. No job may be stopped, or all may: those are placed by the whole set,
and only what it leaves is placed here.

Looked at while it was built: the mixed nodes with 300 jobs of seed 1. ``SEEDS`` were run when it was done.
"""

from __future__ import annotations

import math
import random
import sys
from dataclasses import replace
from typing import NamedTuple

from benchmarks._claims import Claim, at_most, command_line, report
from prefect_gpu.papers.from_trace import ABILITIES
from prefect_gpu.scheduling.cores.cpu_array import CpuArray
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.scheduling.placement.spread import Spread
from prefect_gpu.scheduling.profiles.adaptive import adaptive
from prefect_gpu.scheduling.profiles.profile import Profile
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World

GIB = 2**30
NODES = {
    "alike": [(8, "large", 80 * GIB)] * 4,
    "mixed": [(4, "small", 40 * GIB)] * 2 + [(8, "large", 80 * GIB)] * 3,
}
"""Devices of each node, their kind and their memory."""
WIDTHS = {"1, 2, 4, 8": {1: 5, 2: 2, 4: 2, 8: 1}, "1, 2, 3, 5, 6": {1: 4, 2: 2, 3: 2, 5: 1, 6: 1}}
"""Devices that jobs ask for, and how often."""
NEEDS_GIB = (10, 20, 30, 60)
JOBS = 800
SEEDS = (11, 12)
ASKED = {"alike": 1.005, "mixed": 0.97}
"""The mean completion time with, over that without, in the geometric mean of the cases."""
MOST_MS = 1.0


class Case(NamedTuple):
    """A drawn workload: some of its keys in the tables above, and the load of all devices."""

    nodes: str
    widths: str
    load: float
    parts: bool
    stoppable: bool
    seed: int


CASES = [
    Case(nodes, widths, load, parts, stoppable, seed)
    for seed in SEEDS
    for nodes in NODES
    for widths, parts, stoppable in (
        ("1, 2, 4, 8", False, False),
        ("1, 2, 3, 5, 6", False, False),
        ("1, 2, 4, 8", True, False),
        ("1, 2, 4, 8", False, True),
    )
    for load in (0.7, 0.9)
]


class Figures(NamedTuple):
    """Of one simulation: mean completion time, and mean milliseconds of a decision."""

    mean_s: float
    decision_ms: float


def nodes(name: str) -> list[Node]:
    """Those of a case."""
    return [
        Node(f"n{n}", tuple(Device(f"n{n}g{g}", kind, memory) for g in range(count)), ())
        for n, (count, kind, memory) in enumerate(NODES[name])
    ]


def drawn(case: Case) -> list[JobModel]:
    """Jobs of a case: lengths over four orders of magnitude, arrivals at random."""
    chance = random.Random(case.seed)
    weights = WIDTHS[case.widths]
    widths = chance.choices(list(weights), list(weights.values()), k=JOBS)
    lengths = [min(chance.lognormvariate(6.5, 1.5), 1e5) for _ in widths]
    total_s = sum(width * length for width, length in zip(widths, lengths, strict=True))
    devices = sum(count for count, _, _ in NODES[case.nodes])
    gap_s, now, found = total_s / JOBS / devices / case.load, 0.0, []
    for number, (width, length) in enumerate(zip(widths, lengths, strict=True)):
        needs = chance.choice(NEEDS_GIB) * GIB
        part = case.parts and width == 1 and chance.random() < 0.5
        request = Request(width, gpu_memory_bytes=needs, exclusive=not part, preemptible=case.stoppable)
        now += chance.expovariate(1 / gap_s)
        estimate = Estimate(service_s=length, restart_s=30.0)
        found.append(
            JobModel(f"j{number}", now, length, request, restore_s=30.0, estimate=estimate, memory_bytes=needs)
        )
    return found


def figures(profile: Profile, case: Case) -> Figures:
    """What comes of a case under a profile."""
    results = World(nodes(case.nodes), drawn(case), profile, abilities=ABILITIES).run()
    if results.unfinished:
        raise RuntimeError(f"{case}: {len(results.unfinished)} jobs never ended")
    return Figures(results.summary()["mean_jct_s"], 1000 * results.wall_s / max(results.decisions, 1))


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    options = command_line(__doc__, quick="one seed, jobs that may not be stopped").parse_args()
    cases = [case for case in CASES if not options.quick or (not case.stoppable and case.seed == SEEDS[0])]
    usual = adaptive()
    ratios: dict[Case, float] = {}
    times_ms = []
    for case in cases:
        print(f"  {case} ...", file=sys.stderr, flush=True)
        ours = figures(adaptive(), case)
        ratios[case] = ours.mean_s / figures(replace(usual, placement=CpuArray(Spread())), case).mean_s
        times_ms.append(ours.decision_ms)
    claims: list[Claim] = []
    for name, asked in ASKED.items():
        found = [ratio for case, ratio in ratios.items() if case.nodes == name and not case.stoppable]
        claims.append(at_most(f"fragments live: nodes {name}: mean with over without", round(_middle(found), 4), asked))
    claims.append(at_most("fragments live: ms a decision", round(sum(times_ms) / len(times_ms), 3), MOST_MS))
    details = {str(tuple(case)): round(ratio, 4) for case, ratio in ratios.items()}
    return report("frontier.fragments_live", claims, {"with over without": details}, as_json=options.json)


def _middle(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


if __name__ == "__main__":
    sys.exit(main())
