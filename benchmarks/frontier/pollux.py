"""Elastic jobs whose batch size may change, in the world of Pollux' simulator: its authors' policies, Pollux, and ours.

    python -m benchmarks.frontier.pollux --traces DIR [--quick] [--json]

DIR holds, at any depth, the folders workloads-1.0 and workloads-2.0 and authors_jct_s.json (github.com/petuum/adaptdl,
branch osdi21-artifact: simulator/workloads, simulator/workloads-2.0, and simulator/results-jobload joined), and the
tables pollux_traces (github.com/pkusys/ElasticFlow, pollux/pollux_simulator/traces).

Looked at while the policy was built: workloads 1 to 4 of both loads (``TUNED``), and draws of jobs and times from them.
Workloads 5 to 8 were run once, when it was done. That T^-q over a concave envelope is a good form, that sizes of four
and more are whole nodes, and that another size should pay off by 90 s, came from the description of a prototype that
had seen all of them. The tables are the same for all workloads; of them, it was looked at how the noise grows. Ours
carries nothing from one workload to the next.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks._claims import Claim, at_most, command_line, report
from prefect_gpu.papers.pollux.goodput import Goodput
from prefect_gpu.papers.pollux.optimus import Optimus
from prefect_gpu.papers.pollux.speeds import LearnedSpeeds, TrueSpeeds
from prefect_gpu.papers.pollux.tables import read_tables
from prefect_gpu.papers.pollux.tiresias import Tiresias
from prefect_gpu.papers.pollux.workloads import read_workload
from prefect_gpu.papers.pollux.world import Policy, PolluxWorld
from prefect_gpu.simulation.results import quantile
from prefect_gpu.simulation.traces import TraceJob

LOADS = ("1.0", "2.0")
TUNED, REPORTED = (1, 2, 3, 4), (5, 6, 7, 8)
PEERS: dict[str, Callable[[], Policy]] = {"tiresias": Tiresias, "optimus": Optimus}
ASKED_S = {
    ("learned", "1.0"): 2_450.0,
    ("learned", "2.0"): 4_200.0,
    ("true", "1.0"): 2_310.0,
    ("true", "2.0"): 3_930.0,
}
"""Mean completion times in seconds: speeds fitted on the way, and true ones; means over all eight workloads."""
POLLUX_TAIL, POLLUX_MAKESPAN = 1.15, 1.1


class Figures(NamedTuple):
    """Of one workload, in seconds."""

    mean_s: float
    p99_s: float
    makespan_s: float


class Measured:
    """Each simulation is run once."""

    def __init__(self, traces: Path) -> None:
        self._traces = traces
        self._published = json.loads(self._only("authors_jct_s.json").read_text())
        self._tables = read_tables(self._only("pollux_traces"))
        self._known = TrueSpeeds()
        self.jobs = cache(self._jobs)
        self.completed = cache(self._completed)

    def published(self, policy: str, load: str, workload: int) -> dict[str, float]:
        """Completion times in seconds, by job, as the authors have them."""
        found: dict[str, float] = self._published[f"{policy}-{load}"]["jcts"][f"workload-{workload}"]
        return found

    def _jobs(self, load: str, workload: int) -> list[TraceJob]:
        return read_workload(self._only(f"workloads-{load}") / f"workload-{workload}.csv")

    def _completed(self, policy: str, load: str, workload: int) -> dict[str, float]:
        """Completion times in seconds, by job, as they come out here."""
        print(f"  {policy}, load {load}, workload {workload} ...", file=sys.stderr, flush=True)
        ours = {"true": lambda: Goodput(self._known), "learned": lambda: Goodput(LearnedSpeeds())}
        results = PolluxWorld(self.jobs(load, workload), self._tables, {**PEERS, **ours}[policy]()).run()
        return {outcome.job: outcome.jct_s for outcome in results.outcomes}

    def figures(self, jct_s: dict[str, float], load: str, workload: int) -> Figures:
        """Of these completion times."""
        submitted = {job.job_id: job.submit_s for job in self.jobs(load, workload)}
        ends = [submitted[name] + seconds for name, seconds in jct_s.items()]
        ordered = sorted(jct_s.values())
        return Figures(
            sum(ordered) / len(ordered), quantile(ordered, 0.99), max(ends) - min(submitted[name] for name in jct_s)
        )

    def means(self, policy: str, load: str, workloads: Sequence[int]) -> Figures:
        """Of several workloads."""
        rows = [
            self.figures(
                (self.published if policy == "pollux" else self.completed)(policy, load, workload), load, workload
            )
            for workload in workloads
        ]
        return Figures(*(sum(column) / len(column) for column in zip(*rows, strict=True)))

    def _only(self, name: str) -> Path:
        found = sorted(self._traces.rglob(name))
        if not found:
            raise FileNotFoundError(f"--traces {self._traces} holds no {name}: see --help for where it is public")
        return found[0]


def measure(traces: Path, quick: bool) -> list[Claim]:
    """The claims about this world; quick: the first of the workloads only, against Pollux alone.

    Raises:
        FileNotFoundError: A table or a workload is not there.
    """
    return _claims(Measured(traces), quick)


def _claims(measured: Measured, quick: bool) -> list[Claim]:
    workloads = TUNED[:1] if quick else (*TUNED, *REPORTED)
    claims = [
        at_most(f"pollux: {peer}, load {load}: jobs whose completion differs from its authors'", differ, 0)
        for load in LOADS
        for peer in PEERS
        for differ in [sum(_differ(measured, peer, load, workload) for workload in workloads)]
    ]
    for (knowledge, load), asked_s in ASKED_S.items():
        ours, its = (measured.means(policy, load, workloads) for policy in (knowledge, "pollux"))
        bound = its.mean_s if quick else asked_s
        claims += [
            at_most(f"pollux: ours, speeds {knowledge}, load {load}: mean JCT (s)", round(ours.mean_s), bound),
            at_most(
                f"pollux: ours, speeds {knowledge}, load {load}: p99 over Pollux'", ours.p99_s / its.p99_s, POLLUX_TAIL
            ),
            at_most(
                f"pollux: ours, speeds {knowledge}, load {load}: makespan over Pollux'",
                ours.makespan_s / its.makespan_s,
                POLLUX_MAKESPAN,
            ),
        ]
    return claims


def _differ(measured: Measured, peer: str, load: str, workload: int) -> int:
    here, there = measured.completed(peer, load, workload), measured.published(peer, load, workload)
    return sum(here.get(name) != seconds for name, seconds in there.items()) + len(here.keys() - there.keys())


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="the first workload of each load: under a minute")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    try:
        measured = Measured(options.traces)
        claims = _claims(measured, options.quick)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    parts = {"all": TUNED[:1]} if options.quick else {"all": (*TUNED, *REPORTED), "tune": TUNED, "report": REPORTED}
    details = {
        f"mean, p99 and makespan (s), {part}": {
            f"{policy}-{load}": [round(seconds) for seconds in measured.means(policy, load, workloads)]
            for load in LOADS
            for policy in (*PEERS, "pollux", "learned", "true")
        }
        for part, workloads in parts.items()
    }
    return report("frontier.pollux", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
