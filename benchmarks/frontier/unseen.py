"""A guard against fitting: traces that nobody has seen, drawn anew.

    python -m benchmarks.frontier.unseen --traces DIR [--seed N] [--draws N] [--quick] [--json]

Each draw takes a published trace by chance, and from it sizes and durations, together, and gaps between arrivals, with
replacement; the load, the cluster's size, the cost of a restart and what is known of the durations are chance as well.
The seed is today's date unless it is given, so that each day's sample is another one, and none can be fitted to.
``adaptive`` must not be worse than the best of the others that know as much by more than 1 %, over all draws of a day;
a single draw may be.

Looked at while ``adaptive`` was built: ElasticFlow's clusters 2 and 10 and Muri's trace 3, whole and drawn from
(``cluster.TUNED``). The seeds 1 to 20 of the draws from all traces were looked at to see how often a day fails.
"""

from __future__ import annotations

import datetime
import itertools
import math
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._claims import Claim, at_most, command_line, report
from prefect_gpu.papers.from_trace import simulate
from prefect_gpu.simulation.knowledge import KNOWLEDGE
from prefect_gpu.simulation.traces import TraceJob, read_trace

FILES = ("raw/cluster*.csv", "trace-data/trace*.csv")
"""ElasticFlow's clusters and Muri's traces (github.com/microsoft/elasticflow-traces, github.com/Rivendile/Muri)."""
RIVALS = {"exact": ("srsf", "srtf"), "none": ("las", "fifo")}
"""By what is known of the durations: who is best there among those that were published."""
GPUS_PER_NODE = 8
MAY_BE_WORSE = 1.01


class Draw(NamedTuple):
    """What one simulation is about."""

    trace: str
    jobs: list[TraceJob]
    nodes: int
    restart_cost_s: float
    knowledge: str

    @property
    def name(self) -> str:
        """For people."""
        known = {"exact": "known", "none": "unknown"}[self.knowledge]
        return f"{self.trace} on {self.nodes} nodes, restart {self.restart_cost_s:g} s, durations {known}"


def draw(chance: random.Random, files: Sequence[Path], jobs: int) -> Draw:
    """A trace that nobody has seen, with so many jobs."""
    path = chance.choice(files)
    found = [job for job in read_trace(path) if job.gpus > 0 and job.duration_s > 0]
    nodes = chance.choice((1, 2, 4, 8, 16))
    fitting = [job for job in found if job.gpus <= nodes * GPUS_PER_NODE]
    gaps_s = [max(0.0, later.submit_s - job.submit_s) for job, later in itertools.pairwise(found)]
    chosen = chance.choices(fitting, k=jobs)
    waits_s = chance.choices(gaps_s, k=jobs)
    # The load is what the jobs ask for in the time in which they arrive, over what there is.
    asked_s = sum(job.gpus * job.duration_s for job in chosen)
    arriving_s = asked_s / (nodes * GPUS_PER_NODE * chance.uniform(0.7, 1.2))
    scale, now_s, drawn = arriving_s / max(1.0, sum(waits_s)), 0.0, []
    for number, (job, wait_s) in enumerate(zip(chosen, waits_s, strict=True)):
        now_s += wait_s * scale
        drawn.append(TraceJob(f"{number}", now_s, job.duration_s, job.gpus))
    return Draw(path.stem, drawn, nodes, chance.choice((0.0, 30.0, 300.0)), chance.choice(("exact", "exact", "none")))


def mean_jct_s(drawn: Draw, profile: str) -> float:
    """Mean completion time, in seconds; infinite if a job never ends."""
    results = simulate(
        drawn.jobs,
        profile,
        nodes=drawn.nodes,
        gpus_per_node=GPUS_PER_NODE,
        restart_cost_s=drawn.restart_cost_s,
        knowledge=KNOWLEDGE[drawn.knowledge](),
    )
    return math.inf if results.unfinished else results.summary()["mean_jct_s"]


def measure(traces: Path, seed: int, draws: int, jobs: int) -> list[Claim]:
    """One claim about the sample as a whole for each rival, and the draws behind it on standard error.

    Raises:
        FileNotFoundError: The folder holds none of the traces.
    """
    files = sorted(path for name in FILES for path in traces.rglob(Path(name).name) if path.match(name))
    if not files:
        raise FileNotFoundError(f"--traces {traces} holds none of {', '.join(FILES)}: see --help")
    chance, logs = random.Random(seed), []
    for number in range(draws):
        drawn = draw(chance, files, jobs)
        best = min(mean_jct_s(drawn, rival) for rival in RIVALS[drawn.knowledge])
        ratio = mean_jct_s(drawn, "adaptive") / best
        print(f"  {number + 1}. {drawn.name}: {ratio:.3f}", file=sys.stderr, flush=True)
        logs.append(math.log(ratio))
    name = f"unseen: mean JCT of {draws} draws from seed {seed} over the best of each, geometric mean"
    return [at_most(name, math.exp(sum(logs) / len(logs)), MAY_BE_WORSE)]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="16 draws of 250 jobs")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    parser.add_argument("--seed", type=int, default=datetime.date.today().toordinal())
    parser.add_argument("--draws", type=int, default=20)
    options = parser.parse_args()
    if options.traces is None or not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    draws, jobs = (16, 250) if options.quick else (options.draws, 1_000)
    try:
        claims = measure(options.traces, options.seed, draws, jobs)
    except FileNotFoundError as error:
        parser.error(str(error))
    return report("unseen", claims, {"seed": options.seed}, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
