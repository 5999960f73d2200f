"""How well does the pool know what runs will need?

Real trainings (``data/README.md``): errors against the number of runs learned from, for the five regressors of Liquid's
Fig. 10 and for ours, programs that nobody has seen, how often intervals hold, how soon the end of a training is known.
Public tables: throughput by GPUs, placements, cores; speed of pairs. And a history of 100,000 runs: times and memory.

    python -m benchmarks.estimation [--traces DIR] [--data FILE] [--plot FILE] [--json] [--quick]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks.estimation import ends, figure10, scale
from benchmarks.estimation.figure10 import ALL, MEASURED, OURS, Scores
from benchmarks.estimation.table import DATA, read_progress, read_runs
from prefect_gpu.estimation.runs import LAUNCHING_S, MEMORY_BYTES, SAVING_S, TRAINING_S

FULL = 300  # runs to learn from, for the claims
SIZES = (50, 100, 150, 200, 250)
PAPERS = "random-forest"
TIMES_AND_MEMORY = (TRAINING_S, LAUNCHING_S, SAVING_S, MEMORY_BYTES)


def accuracy_claims(scores: Scores) -> list[Claim]:
    """R², and the paper's forest beaten on every target."""
    own = scores[OURS]
    claims = [
        at_least(f"R² of {target}, {FULL} runs of known programs", own[target]["r2"], 0.95)
        for target in (TRAINING_S, MEMORY_BYTES)
    ]
    for target in MEASURED:
        better = own[target]["rmse"] / scores[PAPERS][target]["rmse"]
        claims.append(Claim(f"RMSE of {target} over the paper's forest's", better, "< 1", better < 1))
    for target in TIMES_AND_MEMORY:
        held = own[target]["held"]
        claims.append(Claim(f"90 % intervals of {target} held", held, "0.87 to 0.93", 0.87 <= held <= 0.93))
    return claims


def main() -> int:
    """Measure and report."""
    parser = command_line(__doc__, quick="under a minute: two splits, 5,000 rows, no curve")
    parser.add_argument("--traces", type=Path, help="folder of the public tables; without it they are left out")
    parser.add_argument("--data", type=Path, default=DATA, help="table of trainings")
    parser.add_argument("--plot", type=Path, help="write the learning curves to this picture")
    options = parser.parse_args()
    if options.traces is not None and not options.traces.is_dir():
        parser.error(f"--traces {options.traces} is no folder: give the one that holds pkusys-ElasticFlow")

    runs = [run for run in read_runs(options.data) if run.completed]
    progress = read_progress(options.data)
    splits = range(2) if options.quick else figure10.splits_of(runs)
    contenders = (PAPERS,) if options.quick else ALL
    scores = figure10.compare(runs, FULL, splits, contenders)
    claims = accuracy_claims(scores)
    details: dict[str, Any] = {"runs": len(runs), "splits": len(splits), "at_300": scores}
    if not options.quick:
        curve = {size: figure10.compare(runs, size, range(2), contenders) for size in SIZES}
        details["curve"] = {**curve, FULL: scores}
        details["unseen"] = figure10.unseen(runs, sorted({run.known.program for run in runs}))
        if options.plot is not None:
            from benchmarks.estimation.draw import draw

            draw(details["curve"], details["unseen"], options.plot)

    soon = ends.by_percent([figure10.split(runs, FULL, seed) for seed in range(1 if options.quick else 4)], progress)
    claims.append(at_most("error of the predicted end after 5 % of the steps, median", soon[5], 0.05))
    details["end_error_by_percent"] = soon

    measured = scale.measure(5_000 if options.quick else 100_000)
    claims += [
        at_most("one estimate, 99th percentile, ms", measured["estimate_p99_ms"], 5.0),
        at_most("learning again, seconds", measured["refit_s"], 60.0),
        at_most("peak memory while learning, GiB", measured["peak_bytes"] / 2**30, 2.0),
    ]
    details["scale"] = measured
    if options.traces is not None:
        from benchmarks.estimation_public import claims_and_tables

        public, tables = claims_and_tables(options.traces, options.quick)
        claims += public
        details["public"] = tables
    return report("estimation", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
