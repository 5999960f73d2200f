"""Jobs with deadlines, in the world of ElasticFlow's simulator: EDF, what is attainable, and ours.

    python -m benchmarks.frontier.elasticflow --traces DIR [--quick] [--json] [--clusters 1,2]

DIR holds, at any depth, the folder elasticflow with cluster01.csv to cluster10.csv
(github.com/microsoft/elasticflow-traces, data/elasticflow-traces.tar.gz) and the tables throughputs_A100
(github.com/pkusys/ElasticFlow, ElasticFlow/scheduler). Clusters that are not there are left out.

Looked at while the policy was built: clusters 1 and 3, with all GPUs and with a quarter (``TUNED``), and 10 as a first
check that the world runs. The others were run once, when it was done. ElasticFlow's own figures are those of the
description of this world, not of a run of ours; they stand in the details only.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from prefect_gpu.papers.elasticflow.simulation import POLICIES, check
from prefect_gpu.papers.elasticflow.speeds import read_speeds
from prefect_gpu.papers.elasticflow.world import ElasticFlowWorld, attainable
from prefect_gpu.simulation.traces import TraceJob, read_trace

GPUS = {1: 512, 2: 512, 3: 512, 4: 1024, 5: 512, 6: 512, 7: 1024, 8: 1024, 9: 1024, 10: 256}
TUNED = (1, 3)
OF_CEILING = {3: 0.95}
"""Part of the ceiling that is asked for; 0.98 elsewhere."""
WITH_A_QUARTER = {1: 0.85, 3: 0.60}
"""Part of all jobs that is asked for with a quarter of the GPUs."""
BROKEN = 0.002
ELASTICFLOW = {1: 0.788, 2: 0.822, 3: 0.455, 5: 0.832, 10: 0.981}
"""Its part of all jobs, by the authors' charging."""


class Figures(NamedTuple):
    """Of one run, as parts of all jobs; the last is the mean seconds of a decision."""

    ceiling: float
    satisfied: float
    broken: float
    decision_s: float


class Measured:
    """Each simulation is run once."""

    def __init__(self, traces: Path) -> None:
        tables = sorted(traces.rglob("throughputs_A100"))
        found = {number: sorted(traces.rglob(f"elasticflow/cluster{number:02d}.csv")) for number in GPUS}
        self._paths = {number: paths[0] for number, paths in found.items() if paths}
        if not tables or not self._paths:
            raise FileNotFoundError(f"--traces {traces} holds no clusters or no throughputs_A100: see --help")
        self._speeds = read_speeds(tables[0])
        self.clusters = tuple(self._paths)
        self.figures = cache(self._figures)

    def jobs(self, cluster: int) -> list[TraceJob]:
        """The jobs of a cluster."""
        found = list(read_trace(self._paths[cluster]))
        check(found, self._speeds)
        return found

    def _figures(self, policy: str, cluster: int, part: int = 1, charging: str = "change") -> Figures:
        print(f"  {policy}, cluster {cluster}, GPUs / {part}, {charging} ...", file=sys.stderr, flush=True)
        jobs, gpus = self.jobs(cluster), GPUS[cluster] // part
        world = ElasticFlowWorld(jobs, self._speeds, POLICIES[policy](), gpus=gpus, charging=charging)
        results = world.run()
        ceiling = len(attainable(jobs, self._speeds, gpus)) / len(jobs)
        decision_s = results.wall_s / max(results.decisions, 1)
        return Figures(ceiling, world.satisfied, len(world.broken()) / len(jobs), decision_s)


def measure(traces: Path, quick: bool) -> list[Claim]:
    """The claims about this world; quick: the smallest cluster only.

    Raises:
        FileNotFoundError: The tables or all clusters are not there.
        ValueError: A job has no deadline or a model without a table.
    """
    measured = Measured(traces)
    return _claims(measured, (10,) if quick else measured.clusters, quick)


def _claims(measured: Measured, clusters: tuple[int, ...], quick: bool) -> list[Claim]:
    claims = []
    for cluster in clusters:
        ours = measured.figures("adaptive", cluster)
        name = f"elasticflow: cluster {cluster}:"
        asked = OF_CEILING.get(cluster, 0.98)
        claims += [
            at_least(f"{name} satisfied of the ceiling", round(ours.satisfied / ours.ceiling, 4), asked),
            at_most(f"{name} promises broken", ours.broken, BROKEN),
        ]
        if cluster in WITH_A_QUARTER and not quick:
            scarce = measured.figures("adaptive", cluster, 4)
            claims += [
                at_least(f"{name} satisfied with a quarter of the GPUs", scarce.satisfied, WITH_A_QUARTER[cluster]),
                at_most(f"{name} promises broken with a quarter of the GPUs", scarce.broken, BROKEN),
            ]
    return claims


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="cluster 10 only: some seconds")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    parser.add_argument("--clusters", help="numbers, with commas; else all that are there")
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    try:
        measured = Measured(options.traces)
        clusters = (10,) if options.quick else measured.clusters
        if options.clusters:
            clusters = tuple(int(number) for number in options.clusters.split(","))
        lacking = [cluster for cluster in clusters if cluster not in measured.clusters]
        if lacking:
            raise FileNotFoundError(f"--traces {options.traces} has no cluster {lacking[0]}: name others")
        claims = _claims(measured, clusters, options.quick)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    runs = [("edf", 1, "change"), ("adaptive", 1, "change"), ("adaptive", 1, "event"), ("adaptive", 4, "change")]
    details = {
        f"cluster {cluster}{' (looked at)' if cluster in TUNED else ''}": {
            "elasticflow": ELASTICFLOW.get(cluster),
            "ceiling": round(measured.figures("adaptive", cluster).ceiling, 4),
            **{
                f"{policy}, GPUs / {part}, {charging}": [round(found.satisfied, 4), round(found.broken, 4)]
                for policy, part, charging in (runs[:2] if options.quick else runs)
                for found in [measured.figures(policy, cluster, part, charging)]
            },
            "ms a decision": round(1000 * measured.figures("adaptive", cluster).decision_s, 2),
        }
        for cluster in clusters
    }
    return report("frontier.elasticflow", claims, {"satisfied, late": details}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
