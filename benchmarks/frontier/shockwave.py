"""Fairness, makespan and completion times where batch sizes change, in the world of Shockwave's simulator.

    python -m benchmarks.frontier.shockwave --traces DIR [--quick] [--json]

DIR holds, at any depth, published.json and beside it 120_jobs.trace, v100_throughputs.json and
batch_size_patterns.json, made of what github.com/uw-mad-dash/shockwave has in scheduler: traces/reproduce/120_*.trace,
the v100 entries of tacc_throughputs.json, the patterns of utils.py with the time that each job takes alone, and the
schedules and times of reproduce/pickles/tacc_32gpus.

Looked at while the policy was built: the trace, and draws of jobs and of gaps between them, with replacement
(``TUNED``). The draws of ``REPORTED`` were run when it was done. The trace has 120 jobs, so that one that
is treated unfairly is 0.8 %: the draws say more. What they are measured against: a bound of the makespan (all work on
all GPUs, and each job from its submission on, alone), the shortest job first, and the longest first.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._claims import Claim, at_most, command_line, report
from prefect_gpu.papers.shockwave.policies import Fair, LongestFirst, Replay, ShortestFirst
from prefect_gpu.papers.shockwave.tables import Tables, Training, read_jobs, read_tables
from prefect_gpu.papers.shockwave.world import Policy, ShockwaveWorld
from prefect_gpu.simulation.results import UNFAIR

GPUS_PER_NODE = 4
NODES = 8
POLICIES: dict[str, Callable[[], Policy]] = {"ours": Fair, "srtf": ShortestFirst, "longest": LongestFirst}


class Draw(NamedTuple):
    """Jobs drawn from the trace, with gaps so many times as long, on so many nodes."""

    seed: int
    jobs: int
    pace: float
    nodes: int


FORMS = ((120, 1.0, 8), (90, 1.0, 8), (160, 1.0, 8), (240, 0.5, 16), (120, 2.0, 8), (120, 0.3, 8))
TUNED = [
    Draw(seed, *form)
    for number, form in enumerate(FORMS)
    for seed in range(100 * number, 100 * number + (4 if number else 8))
]
REPORTED = [
    Draw(seed, *form) for number, form in enumerate(FORMS, start=10) for seed in range(100 * number, 100 * number + 8)
]


class Figures(NamedTuple):
    """Makespan and mean completion time in seconds; worst finish-time fairness; per cent of jobs above 1.05."""

    makespan_s: float
    mean_jct_s: float
    worst: float
    unfair_percent: float


ASKED = Figures(21_800.0, 8_000.0, 1.2, 1.0)
"""Of the trace."""
MAKESPAN_OVER_BOUND, JCT_OVER_SHORTEST, UNFAIR_PERCENT = 1.1, 1.2, 1.0
"""Of the draws, in the mean."""


def ran(jobs: Sequence[Training], tables: Tables, policy: Policy, nodes: int = NODES) -> Figures:
    """What comes of these jobs under a policy."""
    results = ShockwaveWorld(jobs, tables, policy, nodes=nodes, gpus_per_node=GPUS_PER_NODE).run()
    if results.unfinished:
        raise RuntimeError(f"jobs never ended: {results.unfinished}")
    return Figures(
        results.end_s,
        results.summary()["mean_jct_s"],
        max(results.fairness),
        100 * results.unfair_fraction,
    )


def drawn(jobs: Sequence[Training], tables: Tables, draw: Draw) -> tuple[list[Training], Tables]:
    """Jobs of the trace, and gaps between two, both drawn with replacement."""
    chance = random.Random(draw.seed)
    gaps = [later.submit_s - sooner.submit_s for sooner, later in pairwise(jobs)]
    found, patterns, now = [], {}, 0.0
    for number in range(draw.jobs):
        job = chance.choice(jobs)
        found.append(replace(job, job_id=str(number), submit_s=now))
        patterns[str(number)] = tables.patterns[job.job_id]
        now += chance.choice(gaps) * draw.pace
    return found, replace(tables, patterns=patterns)


def bound_s(jobs: Sequence[Training], tables: Tables, gpus: int) -> float:
    """No makespan is much shorter: all work on all GPUs, or a job from its submission on."""
    alone = [(job, tables.patterns[job.job_id].exclusive_s) for job in jobs]
    return max(sum(job.gpus * took for job, took in alone) / gpus, *(job.submit_s + took for job, took in alone))


def over(jobs: Sequence[Training], tables: Tables, draws: Sequence[Draw]) -> dict[str, Figures]:
    """By policy, means over draws: makespan over its bound, mean completion time over that of the shortest first."""
    rows: dict[str, list[Figures]] = {name: [] for name in POLICIES}
    for draw in draws:
        some, their = drawn(jobs, tables, draw)
        bound = bound_s(some, their, draw.nodes * GPUS_PER_NODE)
        found = {name: ran(some, their, policy(), draw.nodes) for name, policy in POLICIES.items()}
        for name, of in found.items():
            rows[name].append(
                of._replace(makespan_s=of.makespan_s / bound, mean_jct_s=of.mean_jct_s / found["srtf"].mean_jct_s)
            )
    return {
        name: Figures(*(sum(column) / len(column) for column in zip(*of, strict=True))) for name, of in rows.items()
    }


def measure(traces: Path, quick: bool) -> list[Claim]:
    """The claims about this world; quick: with one draw of each form.

    Raises:
        FileNotFoundError: The trace or a table is not there.
    """
    return _measured(traces, quick)[0]


def _measured(traces: Path, quick: bool) -> tuple[list[Claim], dict[str, object]]:
    folder = _folder(traces)
    jobs, tables = read_jobs(folder / "120_jobs.trace"), read_tables(folder)
    claims = [
        at_most(f"shockwave: {name}: jobs whose completion differs from its authors'", _differ(jobs, tables, name), 0)
        for name in tables.schedules.values()
    ]
    trace = {name: ran(jobs, tables, policy()) for name, policy in POLICIES.items()}
    words = ("makespan (s)", "mean JCT (s)", "worst fairness", "unfair (%)")
    claims += [
        at_most(f"shockwave: ours: {what}", round(value, 3), asked)
        for what, value, asked in zip(words, trace["ours"], ASKED, strict=True)
    ]
    parts = {
        part: over(jobs, tables, [draw for draw in draws if not (quick and draw.seed % 100)])
        for part, draws in (("tune", TUNED), ("report", REPORTED))
    }
    unseen, longest = parts["report"]["ours"], parts["report"]["longest"]
    ours = "shockwave: ours, unseen draws"
    claims += [
        at_most(f"{ours}: makespan over its bound", unseen.makespan_s, MAKESPAN_OVER_BOUND),
        at_most(f"{ours}: makespan over the longest first's", unseen.makespan_s / longest.makespan_s, 1.01),
        at_most(f"{ours}: mean JCT over the shortest first's", unseen.mean_jct_s, JCT_OVER_SHORTEST),
    ]
    if not quick:  # a few draws say too little about the few jobs that are treated unfairly
        claims.append(at_most(f"{ours}: unfair (%)", unseen.unfair_percent, UNFAIR_PERCENT))
    published = {name: _published(of) for name, of in tables.published.items()}
    details: dict[str, object] = {
        "makespan, mean JCT, worst fairness, unfair %; the trace": {
            name: [round(value, 2) for value in of] for name, of in {**published, **trace}.items()
        },
        "bound of the makespan": round(bound_s(jobs, tables, NODES * GPUS_PER_NODE)),
    }
    for part, found in parts.items():
        details[f"over the bound, over srtf, worst fairness, unfair %; draws, {part}"] = {
            name: [round(value, 3) for value in of] for name, of in found.items()
        }
    return claims, details


def _published(figures: Mapping[str, Any]) -> Figures:
    fairness: list[float] = figures["finish_time_fairness"]
    unfair = 100 * sum(value > UNFAIR for value in fairness) / len(fairness)
    return Figures(figures["makespan_s"], figures["mean_jct_s"], max(fairness), unfair)


def _differ(jobs: Sequence[Training], tables: Tables, name: str) -> int:
    results = ShockwaveWorld(jobs, tables, Replay(tables.schedule(name))).run()
    there = dict(zip((job.job_id for job in jobs), tables.published[name]["jct_s"], strict=True))
    return sum(outcome.end_s is None or outcome.jct_s != there[outcome.job] for outcome in results.outcomes)


def _folder(traces: Path) -> Path:
    found = sorted(traces.rglob("120_jobs.trace"))
    if not found:
        raise FileNotFoundError(f"--traces {traces} holds no 120_jobs.trace: see --help for where it is public")
    return found[0].parent


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="one draw of each form: seconds")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    options = parser.parse_args()
    if options.traces is None or not Path(options.traces).is_dir():
        parser.error(f"--traces {options.traces} is no folder: name one that holds the traces (see --help)")
    try:
        claims, details = _measured(Path(options.traces), options.quick)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    return report("frontier.shockwave", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
