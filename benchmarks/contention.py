"""Is looking at all compositions of jobs better in every column than the greedy rule and a trained policy?

In the world of DeepShare's authors (4 nodes of 8 GPUs, rounds of 300 s, their measured table), where jobs slow each
other down on the network and are spread over two or four nodes, never one.

    python -m benchmarks.contention --traces DIR [--json] [--quick] [--orders N] [--draws N]

DIR holds gajagajago-deepshare (github.com/gajagajago/deepshare, folder ``scheduler``: jobs and traces). On trace0, the
profile ``deepshare-search`` is asked for figures, and compared with the best of each column that the authors'
reinforcement learning reaches, and with the greedy rule in the same run. The figures are asked both without the flaw of
the authors' world and with it (see :mod:`~prefect_gpu.papers.deepshare.world_in_rounds`); all other comparisons of
the search are made without. The policy draws nothing at random; ties between jobs that are alike are decided by their
order, so the job set is played in several orders (``--orders``), and the worst figure of each column counts.

*Trained policies*: each ``deepshare-base-…`` that comes with the package against the authors' checkpoint with the same
weights in its reward, on trace0, in the authors' own world, with the flaw. What they reach on sets drawn at random is
in the records beside their weights; the authors have published nothing to compare that with.

*Unseen*: the authors' nine training sets, and sets drawn as in the paper with contention predicted from its Table I.
Nothing was tuned on these. Each claim there is of the mean over the sets. Where most jobs are heavy, the greedy rule
leaves up to a third of the GPUs idle so that those that run do so at full speed: there its running times are shorter
and its ratios higher, and these claims do not hold. Each set, with all columns, is in the details.

Limits: speeds and remaining times are known exactly. Stopping and moving are free in this world, and each decision may
move everybody. The decision time is this machine's. Quick: one order, two unseen sets.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from prefect_gpu.papers.deepshare.contended import MIXES, draw, predicted_table
from prefect_gpu.papers.deepshare.greedy import Rule
from prefect_gpu.papers.deepshare.mixes import decision_times
from prefect_gpu.papers.deepshare.profiles import AGENTS, greedy, knowing
from prefect_gpu.papers.deepshare.shipped import available
from prefect_gpu.papers.deepshare.world import DeepShareWorld, Figures
from prefect_gpu.scheduling.interference.sensitivity import SensitivityTable
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.simulation.traces import ContentionTable, TraceJob, read_contention, read_trace

# Running time, mean completion, p90 (not compared), makespan [s]; throughput ratio, part of the GPUs in use.
TRAINED = Figures(4_759.0, 104_775.0, 0.0, 251_200.0, 0.767, 0.815)
CHECKPOINTS = {
    "A": Figures(5_393.0, 105_724.0, 0.0, 251_700.0, 0.672, 0.815),
    "B": Figures(5_180.0, 104_775.0, 0.0, 251_200.0, 0.699, 0.777),
    "C": Figures(5_073.0, 145_834.0, 0.0, 320_200.0, 0.720, 0.615),
    "D": Figures(5_080.0, 172_666.0, 0.0, 381_900.0, 0.732, 0.515),
    "E": Figures(4_759.0, 111_635.0, 0.0, 261_500.0, 0.767, 0.714),
}
ASKED = Figures(4_397.0, 62_500.0, 0.0, 172_500.0, 0.827, 0.922)
LARGEST_DECISION_S = 0.05
_FIELDS = {"running_s": "running time [s]", "completion_s": "mean completion [s]", "makespan_s": "makespan [s]"}
_PARTS = {"ratio": "throughput ratio", "used": "GPUs in use"}


def profiles(table: ContentionTable) -> dict[str, Profile]:
    """All policies by name, knowing the table."""
    known = lambda: SensitivityTable(table.ratios)  # noqa: E731  (each has its own, as it learns)
    return {
        "greedy": greedy(known(), table.isolated, Rule()),
        **{
            name.removeprefix("deepshare-"): knowing(name, known(), table.isolated)
            for name in ("deepshare-search", *AGENTS)
        },
    }


def play(jobs: Sequence[TraceJob], table: ContentionTable, name: str, *, flaw: bool = False) -> tuple[Figures, float]:
    """The figures of a job set, and the 99th percentile of the processor seconds of a decision."""
    world = DeepShareWorld(jobs, table, profiles(table)[name], flaw=flaw)
    took = decision_times(world.scheduler)
    unfinished = world.run().unfinished
    if unfinished:
        raise RuntimeError(f"{name} left {len(unfinished)} jobs unfinished, {unfinished[0]} among them")
    return world.figures(), sorted(took)[int(0.99 * len(took))]


def claims_of(name: str, found: Figures, bound: Figures) -> list[Claim]:
    """No column worse than the bound's."""
    return [
        *(at_most(f"{name}: {words}", getattr(found, at), getattr(bound, at)) for at, words in _FIELDS.items()),
        *(at_least(f"{name}: {words}", getattr(found, at), getattr(bound, at)) for at, words in _PARTS.items()),
    ]


def worst(figures: Sequence[Figures]) -> Figures:
    """The worst of each column."""
    lowest = {name: min(getattr(one, name) for one in figures) for name in _PARTS}
    highest = {name: max(getattr(one, name) for one in figures) for name in (*_FIELDS, "p90_s")}
    return Figures(**highest, **lowest)


def mean(figures: Sequence[Figures]) -> Figures:
    """The mean of each column."""
    return Figures(*(fmean(column) for column in zip(*map(astuple, figures), strict=True)))


def orders(jobs: Sequence[TraceJob], count: int) -> list[list[TraceJob]]:
    """The jobs in the order of the file, and shuffled."""
    found = [list(jobs)]
    for seed in range(1, count):
        found.append(random.Random(seed).sample(list(jobs), len(jobs)))
    return found


def main() -> int:
    """Run the benchmark; the exit code says whether all claims hold."""
    parser = command_line(__doc__, quick="one order, two unseen sets")
    parser.add_argument("--traces", type=Path, default=os.environ.get("PREFECT_GPU_TRACES"))
    parser.add_argument("--orders", type=int, default=3, help="orders of trace0 (default: 3)")
    parser.add_argument("--draws", type=int, default=2, help="sets drawn of each of the paper's mixes (default: 2)")
    args = parser.parse_args()
    if args.traces is None:
        parser.error("--traces: name the folder that holds gajagajago-deepshare")
    folder = Path(args.traces) / "gajagajago-deepshare"
    table, drawn = read_contention(folder / "jobs"), predicted_table()
    trace0 = list(read_trace(folder / "traces" / "simulate" / "trace0"))
    played = [play(jobs, table, "search") for jobs in orders(trace0, 1 if args.quick else args.orders)]
    ours, plain = worst([one for one, _ in played]), play(trace0, table, "greedy")[0]
    trained = {f"{kind}-{one.lower()}": one for kind in ("base", "hybrid") for one in available()}
    flawed = {name: play(trace0, table, name, flaw=True)[0] for name in ("search", "greedy", *trained)}
    claims = [
        *claims_of("trace0, asked", ours, ASKED),
        *claims_of("trace0 with the flaw, asked", flawed["search"], ASKED),
        *claims_of("trace0, greedy in this run", ours, plain),
        *claims_of("trace0, best of RL", ours, TRAINED),
        at_most("decision, p99 [processor s]", max(took for _, took in played), LARGEST_DECISION_S),
        *(
            claim
            for name, one in trained.items()
            for claim in claims_of(f"checkpoint {one}, {name}", flawed[name], CHECKPOINTS[one])
        ),
    ]
    details: dict[str, Any] = {
        "columns": "running, completion, p90, makespan [s], ratio, used",
        "trace0, search, by order": [_shown(one) for one, _ in played],
        "trace0, greedy": _shown(plain),
        **{f"trace0 with the flaw, {name}": _shown(one) for name, one in flawed.items()},
        "not trained": sorted(set(CHECKPOINTS) - set(available())),
    }
    train = sorted((folder / "traces" / "train").glob("*/*"))[: 1 if args.quick else None]
    unseen = {
        "training sets": {f"{one.parent.name}/{one.name}": (list(read_trace(one)), table) for one in train},
        "drawn": {
            f"{mix} {seed}": (draw(seed, mix=mix), drawn)
            for mix in list(MIXES)[: 1 if args.quick else None]
            for seed in range(1, 2 if args.quick else 1 + args.draws)
        },
    }
    for kind, sets in unseen.items():
        all_of: dict[str, list[Figures]] = {"search": [], "greedy": []}
        for name, (jobs, truth) in sets.items():
            for who, figures in all_of.items():
                figures.append(play(jobs, truth, who)[0])
                details[f"{name}, {who}"] = _shown(figures[-1])
        claims += claims_of(f"unseen, {kind}, greedy", mean(all_of["search"]), mean(all_of["greedy"]))
        details |= {f"{kind}, mean, {who}": _shown(mean(figures)) for who, figures in all_of.items()}
    return report("contention", claims, details, as_json=args.json)


def _shown(figures: Figures) -> list[float]:
    return [round(one, 3 if one < 1 else 0) for one in astuple(figures)]


if __name__ == "__main__":
    sys.exit(main())
