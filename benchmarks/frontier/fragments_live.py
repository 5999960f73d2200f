"""What fragments bring ``adaptive`` in our own world, where kinds of nodes differ: with them, over without.

    python -m benchmarks.frontier.fragments_live [--quick] [--json]

Jobs that ask for less than a node are drawn: whole devices, or parts of one, which slow each other down as Liquid's
model says. Two of five nodes have four small devices, which cannot hold every job (``mixed``); or four of five have
small ones, and one job in ten needs the fifth (``scarce``). No job may be stopped: those that may, and have whole
devices, are placed by the whole set.

Looked at while it was built: seeds 1 to 8, 21 to 28 and 41 to 56. ``SEEDS`` were run once, when it was done.
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
from prefect_gpu.simulation.effects.sharing import Interference
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World

GIB = 2**30
NODES = {
    "mixed": [(4, "small", 40 * GIB)] * 2 + [(8, "large", 80 * GIB)] * 3,
    "scarce": [(8, "small", 40 * GIB)] * 4 + [(8, "large", 80 * GIB)],
}
"""Devices of each node, their kind and their memory."""
WIDTHS = {"1, 2, 4, 8": {1: 5, 2: 2, 4: 2, 8: 1}, "1, 2, 3, 5, 6": {1: 4, 2: 2, 3: 2, 5: 1, 6: 1}}
"""Devices that jobs ask for, and how often."""
NEEDS_GIB = {"mixed": (10, 20, 30, 60), "scarce": (*[10] * 5, *[20] * 4, 60)}
USES = (0.2, 0.3, 0.4, 0.6)
"""Mean use of a device by those that ask for a part of it."""
LOAD = 0.8
JOBS = 250
SEEDS = tuple(range(101, 117))
MAY_BE_WORSE = 1.0
"""The mean completion time with, over that without, in the geometric mean of all draws."""


class Case(NamedTuple):
    """A drawn workload: some of its keys in the tables above."""

    nodes: str
    widths: str
    parts: bool
    seed: int


CASES = [
    Case(nodes, widths, parts, seed)
    for seed in SEEDS
    for nodes in NODES
    for widths, parts in (
        ("1, 2, 4, 8", False),
        ("1, 2, 3, 5, 6", False),
        ("1, 2, 4, 8", True),
    )
]


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
    parts = [case.parts and width == 1 and chance.random() < 0.5 for width in widths]
    uses = [chance.choice(USES) if part else 1.0 for part in parts]
    total_s = sum(width * length * use for width, length, use in zip(widths, lengths, uses, strict=True))
    devices = sum(count for count, _, _ in NODES[case.nodes])
    gap_s, now, found = total_s / JOBS / devices / LOAD, 0.0, []
    for number, (width, length, part, use) in enumerate(zip(widths, lengths, parts, uses, strict=True)):
        needs = chance.choice(NEEDS_GIB[case.nodes]) * GIB
        now += chance.expovariate(1 / gap_s)
        found.append(
            JobModel(
                f"j{number}",
                now,
                length,
                Request(width, gpu_memory_bytes=needs, exclusive=not part),
                restore_s=30.0,
                estimate=Estimate(service_s=length, restart_s=30.0, utilisation=use),
                utilisation=use,
                memory_bytes=needs,
            )
        )
    return found


def mean_s(profile: Profile, case: Case) -> float:
    """Mean completion time of a case under a profile."""
    world = World(nodes(case.nodes), drawn(case), profile, abilities=ABILITIES, physics=Interference())
    results = world.run()
    if results.unfinished:
        raise RuntimeError(f"{case}: {len(results.unfinished)} jobs never ended")
    return float(results.summary()["mean_jct_s"])


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    options = command_line(__doc__, quick="one seed, which claims nothing").parse_args()
    ratios: dict[Case, float] = {}
    for case in CASES:
        if not options.quick or case.seed == SEEDS[0]:
            without = replace(adaptive(), placement=CpuArray(Spread()))
            ratios[case] = mean_s(adaptive(), case) / mean_s(without, case)
            print(f"  {case}: {ratios[case]:.4f}", file=sys.stderr, flush=True)
    claims: list[Claim] = []
    details: dict[str, object] = {}
    for name in NODES:
        logs = [math.log(ratio) for case, ratio in ratios.items() if case.nodes == name]
        middle = sum(logs) / len(logs)
        error = math.sqrt(sum((log - middle) ** 2 for log in logs) / max(len(logs) - 1, 1) / len(logs))
        details[f"{name}: geometric mean, standard error"] = [round(math.exp(middle), 4), round(error, 4)]
        if not options.quick:
            words = f"fragments live: {name}: mean completion time with over without"
            claims.append(at_most(words, round(math.exp(middle), 4), MAY_BE_WORSE))
    details["by case"] = {str(tuple(case)): round(ratio, 4) for case, ratio in ratios.items()}
    return report("frontier.fragments_live", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
