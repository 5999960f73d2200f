"""Is the simulation true, and how well does ``adaptive`` schedule, on published traces?

Fidelity: in the worlds of two published simulators, the policies that they have too must give their figures. Quality:
on the same traces in the same world, ``adaptive`` against the best that was published. One setting for all traces.

    python -m benchmarks.quality --traces DIR [--json] [--quick]

DIR holds Muri's trace1.csv, trace2.csv and trace3.csv (github.com/Rivendile/Muri, simulator/trace-data) and DeepShare's
folders jobs and traces (github.com/gajagajago/deepshare), at any depth. Quick: the smallest trace only, and DeepShare.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks._claims import Claim, command_line, report
from prefect_gpu.papers.deepshare.world import DeepShareWorld
from prefect_gpu.papers.from_trace import simulate
from prefect_gpu.simulation.knowledge import KNOWLEDGE
from prefect_gpu.simulation.results import Results
from prefect_gpu.simulation.traces import TraceJob, read_contention, read_trace

NODES, GPUS_PER_NODE = 8, 8

# What Muri's simulator gives on 8 × 8 GPUs: mean completion times in seconds, run again and as its authors have them.
PEER_S = {
    "srtf": {"trace1": 1_370_603.2, "trace2": 2_665_607.4, "trace3": 193_081.8},
    "srsf": {"trace1": 980_140.6, "trace2": 2_213_949.7, "trace3": 185_021.9},
    "tiresias": {"trace1": 3_330_371.3, "trace2": 7_396_368.5, "trace3": 347_213.2},
}
THEMIS_S = {"trace1": 1_823_179.0, "trace2": 4_628_172.0, "trace3": 401_060.0}
# Sharing: Muri's own policies, and a plain greedy packing in the same world; then what is asked.
MURI_S = {"trace1": 867_705.8, "trace3": 83_242.5}
MURI_L = {"trace1": 1_072_009.7, "trace3": 88_687.0}
GREEDY_S = {"trace1": 687_243.0, "trace3": 93_261.0}
GREEDY_LAS_S = {"trace1": 1_030_485.0, "trace3": 102_176.0}
ASKED_EXACT_S = {"trace1": 670_000.0, "trace3": 82_000.0}
ASKED_UNKNOWN_S = {"trace1": 1_000_000.0, "trace3": 88_000.0}
# DeepShare's baselines: running time, mean completion, makespan, throughput ratio, part of the GPUs in use.
DEEPSHARE = {
    "deepshare-las": (6_082.0, 139_631.0, 271_500.0, 0.627, 0.907),
    "deepshare-srtf": (5_975.0, 245_364.0, 258_600.0, 0.636, 0.929),
}
LARGEST_ERROR_PERCENT = 0.5
LARGEST_DEEPSHARE_ERROR_PERCENT = 2.0
BELOW_SRSF = 0.97  # in the geometric mean
LEARNED_OVER_EXACT = 1.05


class Measured:
    """Mean completion times in Muri's world; each is simulated once."""

    def __init__(self, traces: dict[str, list[TraceJob]]) -> None:
        self.traces = traces
        self.results: dict[str, Results] = {}

    def jct_s(self, trace: str, profile: str, knowledge: str = "exact", *, sharing: bool = False) -> float:
        """Mean completion time in seconds; infinite if a job never ended."""
        name = f"{trace} {profile} {knowledge}{' sharing' if sharing else ''}"
        if name not in self.results:
            print(f"  {name} ...", file=sys.stderr, flush=True)
            self.results[name] = simulate(
                self.traces[trace],
                profile,
                nodes=NODES,
                gpus_per_node=GPUS_PER_NODE,
                world="muri",
                sharing=sharing,
                knowledge=KNOWLEDGE[knowledge](),
            )
        found = self.results[name]
        return math.inf if found.unfinished else found.summary()["mean_jct_s"]


def fidelity(measured: Measured) -> list[Claim]:
    """How far three policies are from the peer's figures."""
    return [
        _at_most(
            f"{profile} on {trace}: difference from Muri's simulator, percent",
            100 * abs(measured.jct_s(trace, profile) / PEER_S[profile][trace] - 1),
            LARGEST_ERROR_PERCENT,
        )
        for profile in PEER_S
        for trace in measured.traces
    ]


def fidelity_of_rounds(folder: Path) -> list[Claim]:
    """How far two policies are from DeepShare's figures, in the worst of five columns."""
    table = read_contention(_only(folder, "shared_thp_ratio.csv").parent)
    jobs = list(read_trace(_only(folder, "trace0"), "deepshare"))
    claims = []
    for profile, printed in DEEPSHARE.items():
        world = DeepShareWorld(jobs, table, profile)
        world.run()
        found = world.figures()
        columns = (found.running_s, found.completion_s, found.makespan_s, found.ratio, found.used)
        worst = max(abs(ours / theirs - 1) for ours, theirs in zip(columns, printed, strict=True))
        name = f"{profile}: largest difference from DeepShare's simulator, percent"
        claims.append(_at_most(name, 100 * worst, LARGEST_DEEPSHARE_ERROR_PERCENT))
    return claims


def exclusive(measured: Measured) -> list[Claim]:
    """``adaptive`` with whole GPUs: durations exact, learned in the same trace, and unknown."""
    claims = []
    for trace in measured.traces:
        exact_s = measured.jct_s(trace, "adaptive")
        claims.append(_at_most(f"adaptive on {trace}, mean JCT (s); SRSF's", exact_s, PEER_S["srsf"][trace]))
        learned_s = measured.jct_s(trace, "adaptive", "learned")
        name = f"adaptive on {trace}, durations learned / exact"
        claims.append(_at_most(name, learned_s / exact_s, LEARNED_OVER_EXACT))
        unknown_s = measured.jct_s(trace, "adaptive", "none")
        claims.append(
            _below(f"adaptive on {trace}, durations unknown, mean JCT (s); Themis'", unknown_s, THEMIS_S[trace])
        )
    if set(measured.traces) == set(THEMIS_S):
        ratio = _geometric_mean(measured.jct_s(t, "adaptive") / PEER_S["srsf"][t] for t in measured.traces)
        claims.append(_at_most("adaptive / SRSF, geometric mean", ratio, BELOW_SRSF))
    return claims


def sharing(measured: Measured) -> list[Claim]:
    """``adaptive`` with shared GPUs: durations exact, and unknown."""
    claims = []
    for knowledge, bounds in (
        ("exact", (("Muri-S", MURI_S), ("greedy packing", GREEDY_S), ("asked", ASKED_EXACT_S))),
        ("none", (("Muri-L", MURI_L), ("greedy packing on LAS", GREEDY_LAS_S), ("asked", ASKED_UNKNOWN_S))),
    ):
        for trace in measured.traces:
            if trace not in MURI_S:
                continue
            jct_s = measured.jct_s(trace, "adaptive", knowledge, sharing=True)
            for whose, values in bounds:
                name = f"adaptive, sharing, on {trace}, durations {knowledge}, mean JCT (s); {whose}"
                compare = _at_most if whose == "asked" else _below
                claims.append(compare(name, jct_s, values[trace]))
    return claims


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="the smallest trace only: less than a minute")
    parser.add_argument(
        "--traces",
        type=Path,
        default=os.environ.get("PREFECT_GPU_TRACES"),
        help="folder of the published traces (default: the environment variable PREFECT_GPU_TRACES)",
    )
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    try:
        names = ("trace3",) if options.quick else ("trace1", "trace2", "trace3")
        measured = Measured({name: list(read_trace(_only(options.traces, f"{name}.csv"), "muri")) for name in names})
        claims = [*fidelity(measured), *fidelity_of_rounds(options.traces), *exclusive(measured), *sharing(measured)]
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    details = {
        "cluster": {"nodes": NODES, "gpus_per_node": GPUS_PER_NODE},
        "mean_jct_s": {name: round(found.summary()["mean_jct_s"], 1) for name, found in measured.results.items()},
        "wall_s": {name: round(found.wall_s, 1) for name, found in measured.results.items()},
    }
    return report("quality", claims, details, as_json=options.json)


def _only(folder: Path, name: str) -> Path:
    """The file of that name in the folder or below."""
    found = sorted(folder.rglob(name))
    if not found:
        raise FileNotFoundError(f"--traces {folder} holds no {name}: see --help for where it is public")
    return found[0]


def _geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _at_most(name: str, value: float, bound: float) -> Claim:
    return Claim(name, value, f"<= {bound:,.7g}", value <= bound)


def _below(name: str, value: float, bound: float) -> Claim:
    return Claim(name, value, f"< {bound:,.7g}", value < bound)


if __name__ == "__main__":
    sys.exit(main())
