"""Do jobs finish sooner if their number of workers may vary than with any fixed number? Simulated, 8 nodes × 4 GPUs.

Every second job is a gang that scales by Amdahl's law (1 to 15 % of a step fixed); the others have 1, 2 or 4 GPUs. All
may be stopped: a launch takes 30 s, a checkpoint 5 s. ``adaptive`` schedules the same jobs with ``workers=(1, 8)``, and
with 1, 2, 4 and 8 workers each. Lengths and speeds are known to the scheduler in all cases.

    python -m benchmarks.elastic_gangs [--json] [--quick]

Jobs are drawn; seeds 1 and 2 were looked at while the policy was built, 11 to 18 once, before jobs were prepared behind
elastic gangs, and 21 to 28 were run at the end.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from itertools import product

from benchmarks._claims import Claim, below, command_line, report
from prefect_gpu.scheduling.model.cluster import Device, Node
from prefect_gpu.scheduling.model.jobs import Estimate, Request
from prefect_gpu.simulation.model import JobModel
from prefect_gpu.simulation.world import World

NODES, PER_NODE, MOST = 8, 4, 8
FIXED = (1, 2, 4, 8)
LAUNCH_S, CHECKPOINT_S = 30.0, 5.0
MEANS_S = (3_000.0, 18_000.0)
"""Seconds that a job takes on one GPU, in the mean: it is the launches that make the difference."""
LOADS = (0.6, 1.0)
"""GPU hours that are submitted per GPU hour that there is, if all gangs had one worker."""
TUNED, UNSEEN = (1, 2), tuple(range(21, 29))


def drawn(seed: int, mean_s: float, load: float, count: int, workers: int | None) -> list[JobModel]:
    """A workload; gangs with so many workers, or None: as many as it pays to give them."""
    rng = random.Random(seed)
    gap_s = mean_s / (load * NODES * PER_NODE)
    jobs, now = list[JobModel](), 0.0
    for number in range(count):
        now += rng.expovariate(1.0 / gap_s)
        gang = number % 2 == 0
        gpus = 1 if gang else rng.choice((1, 2, 4))
        work_s = min(10.0, max(0.05, rng.lognormvariate(-0.605, 1.1))) * mean_s  # on one GPU
        part = rng.uniform(0.01, 0.15)
        curve = tuple(n / (1.0 + part * (n - 1)) for n in range(1, MOST + 1))
        if gang and workers is None:
            request, service_s, speeds = Request(1, max_workers=MOST, preemptible=True), work_s, curve
        elif gang:
            request, speeds = Request(1, workers=workers or 1, preemptible=True), ()
            service_s = work_s / curve[(workers or 1) - 1]
        else:
            request, service_s, speeds = Request(gpus, preemptible=True), work_s / gpus, ()
        told = Estimate(service_s, LAUNCH_S, throughput=speeds, restart_s=CHECKPOINT_S)
        jobs.append(
            JobModel(
                f"{'gang' if gang else 'rigid'}-{number}", now, service_s, request, launching_s=LAUNCH_S,
                checkpoint_s=CHECKPOINT_S, estimate=told, throughput=speeds,
            )
        )  # fmt: skip
    return jobs


def simulated(jobs: Sequence[JobModel], profile: str = "adaptive") -> dict[str, float]:
    """Mean and 99th percentile of the completion times, and the makespan, in seconds; and launches per job."""
    nodes = [
        Node(f"n{node}", tuple(Device(f"n{node}g{gpu}", "x", 8 << 30) for gpu in range(PER_NODE)), ())
        for node in range(NODES)
    ]
    results = World(nodes, jobs, profile).run()
    if results.unfinished:
        raise RuntimeError(f"these have not ended: {results.unfinished}")
    times = sorted(one.jct_s for one in results.finished)
    of = {name: [one.jct_s for one in results.finished if one.job.startswith(name)] for name in ("gang", "rigid")}
    return {
        "mean_s": statistics.mean(times),
        "gangs_s": statistics.mean(of["gang"]),
        "rigid_s": statistics.mean(of["rigid"]),
        "p99_s": times[int(0.99 * (len(times) - 1))],
        "makespan_s": results.makespan_s,
        "launches": statistics.mean(one.starts for one in results.finished),
    }


def measured(seeds: Sequence[int], count: int) -> dict[str, dict[str, dict[str, float]]]:
    """By length, load and kind of gangs, the means over all seeds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for mean_s, load, workers in product(MEANS_S, LOADS, (None, *FIXED)):
        each = [simulated(drawn(seed, mean_s, load, count, workers)) for seed in seeds]
        means = {name: statistics.mean(one[name] for one in each) for name in each[0]}
        case = found.setdefault(f"{mean_s:g} GPU seconds, load {load:g}", {})
        case["1 to 8" if workers is None else str(workers)] = means
    return found


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="one workload that was looked at, of 60 jobs: some seconds")
    parser.add_argument("--tuned", action="store_true", help="the workloads that were looked at")
    options = parser.parse_args()
    seeds = TUNED[:1] if options.quick else TUNED if options.tuned else UNSEEN
    found = measured(seeds, 60 if options.quick else 240)
    claims: list[Claim] = []
    for load, of in found.items():
        best = min(of[str(workers)]["mean_s"] for workers in FIXED)
        claims.append(below(f"{load}: mean completion time ÷ that of the best fixed", of["1 to 8"]["mean_s"] / best, 1))
    details = {
        f"{load}, {kind} workers": ", ".join(f"{name} {value:,.4g}" for name, value in of.items())
        for load, kinds in found.items()
        for kind, of in kinds.items()
    }
    return report("elastic_gangs", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
