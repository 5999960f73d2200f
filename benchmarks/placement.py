"""How long does it take to find places for one gang, and how good are they?

Liquid's two algorithms, best fit and the grouping genetic algorithm, on a cluster of which half the GPUs are busy. The
gang is one parameter server and workers, one GPU each. Also measured: our best fit from several first nodes.

    python -m benchmarks.placement [--nodes 1024] [--gpus 8] [--containers 8] [--trials N] [--json] [--quick]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks._claims import Claim, command_line, report
from prefect_gpu.scheduling.placement.kernels.best_fit import AnchoredBestFit, GangBestFit
from prefect_gpu.scheduling.placement.kernels.containers import Container, Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.genetic import Genetic
from prefect_gpu.scheduling.placement.kernels.topology import Topology

RACK_NODES = 16
DOMAIN_NODES = 256

# Constants, not measured here: Liquid's own Go code, on a machine of this kind, by nodes, GPUs and containers. Its
# racks, domains and busy GPUs were its own, so its times compare with ours and its network costs do not.
LIQUIDS_GO_CODE_MS = {
    (16, 4, 4): {"best_fit": 0.086, "genetic": 10.7},
    (64, 8, 8): {"best_fit": 1.0, "genetic": 89.8},
    (256, 8, 8): {"best_fit": 10.2, "genetic": 604.0},
    (256, 8, 32): {"best_fit": 42.0, "genetic": 1257.0},
    (1024, 8, 8): {"best_fit": 149.5, "genetic": 4515.0},
}


def half_busy(nodes: int, gpus: int, seed: int) -> tuple[Topology, Free]:
    """A cluster in racks and domains, with half of its GPUs, drawn one by one, in use."""
    numbers = np.arange(nodes)
    topology = Topology(numbers // DOMAIN_NODES, numbers // RACK_NODES, [gpus] * nodes)
    busy = np.random.default_rng(seed).choice(nodes * gpus, nodes * gpus // 2, replace=False)
    return topology, Free(gpus - np.bincount(busy // gpus, minlength=nodes))


def one_gang(containers: int) -> Gang:
    """One server and workers, one GPU each."""
    return (Container(gpus=1, role="ps"), *(Container(gpus=1) for _ in range(containers - 1)))


def timed(call: Callable[[], Plan | None], repeats: int) -> tuple[Plan, float]:
    """What a call returns, and the median of its time in milliseconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        plan = call()
        times.append((time.perf_counter() - began) * 1000.0)
    if plan is None:
        raise SystemExit("the gang does not fit into the half-busy cluster: ask for fewer containers or more nodes")
    return plan, statistics.median(times)


def measure(nodes: int, gpus: int, containers: int, trials: int, seed: int) -> dict[str, dict[str, list[float]]]:
    """For each algorithm, milliseconds, network cost (sum over pairs) and nodes used in each trial."""
    gang = one_gang(containers)
    results: dict[str, dict[str, list[float]]] = {}
    for trial in range(trials):
        topology, free = half_busy(nodes, gpus, seed + trial)
        calls: dict[str, tuple[Callable[[], Plan | None], int]] = {
            "best_fit": (lambda: GangBestFit().place(gang, free, topology), 5),  # noqa: B023  # called at once
            "anchored": (lambda: AnchoredBestFit().place(gang, free, topology), 5),  # noqa: B023
            "genetic": (lambda: Genetic().place(gang, free, topology, random.Random(trial)), 1),  # noqa: B023
        }
        for name, (call, repeats) in calls.items():
            plan, milliseconds = timed(call, repeats)
            found = results.setdefault(name, {"ms": [], "cost": [], "nodes": []})
            found["ms"].append(milliseconds)
            found["cost"].append(topology.network_cost(gang, plan, normalised=False))
            found["nodes"].append(len(set(plan)))
    return results


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="few trials: a few seconds")
    parser.add_argument("--nodes", type=int, default=1024)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each node")
    parser.add_argument("--containers", type=int, default=8, help="containers of the gang, one GPU each")
    parser.add_argument("--trials", type=int, default=25, help="clusters, each with other busy GPUs (default: 25)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("nodes", "gpus", "containers", "trials"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}: give 1 or more")
    trials = min(options.trials, 5) if options.quick else options.trials
    results = measure(options.nodes, options.gpus, options.containers, trials, options.seed)

    best_fit, genetic = results["best_fit"], results["genetic"]
    dearer = max(ours - theirs for ours, theirs in zip(genetic["cost"], best_fit["cost"], strict=True))
    claims = [
        _at_most("best fit, median milliseconds", statistics.median(best_fit["ms"]), 5),
        _at_most("genetic, median milliseconds", statistics.median(genetic["ms"]), 450),
        _at_most("genetic's network cost - best fit's, largest of all trials", dearer, 0),
    ]
    medians = {
        name: {key: round(statistics.median(values), 3) for key, values in found.items()}
        for name, found in results.items()
    }
    size = (options.nodes, options.gpus, options.containers)
    details = {
        "size": {"nodes": size[0], "gpus_per_node": size[1], "containers": size[2], "trials": trials},
        "network": {"nodes_per_rack": RACK_NODES, "nodes_per_domain": DOMAIN_NODES},
        "median": medians,
        "liquids_go_code_on_a_machine_of_this_kind_ms": LIQUIDS_GO_CODE_MS.get(size, "not known for this size"),
    }
    return report("placement", claims, details, as_json=options.json)


def _at_most(name: str, value: float, bound: float) -> Claim:
    return Claim(name, value, f"<= {bound:g}", value <= bound)


if __name__ == "__main__":
    sys.exit(main())
