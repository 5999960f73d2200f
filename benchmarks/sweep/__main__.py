"""A sweep of 16 real trainings on one device: our pool against Prefect's process worker.

The device is core 0, which each run binds itself to while it trains; core 1 is the host's processor and does all the
rest: server, workers, importing, loading and saving. The same flow file for everybody. Contenders take turns, each with
a worker of its own that is started for its sweep. Our pool begins every sweep with the history of an earlier one, which
had other parameters and is shown too.

    python -m benchmarks.sweep [--json] [--quick] [--repeats N] [--only NAME ...] [--poll SECONDS] [--out FOLDER]
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client

from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks._host.served import served
from benchmarks.sweep.contenders import (
    CONTENDERS,
    FASTEST_POLL,
    OURS,
    PROCESS,
    WARM_UP_S,
    Contender,
    Sweep,
    asking_every,
    deployed,
    enough_cores,
    keep_logs,
    run_sweep,
)
from benchmarks.sweep.figures import Figures, changed_losses, figures, median_of
from benchmarks.sweep.flows import ENV_DATA, HOST_CORE
from benchmarks.sweep.picture import draw
from benchmarks.sweep.trainings import sweep, write_table
from prefect_gpu.lab.sandbox import Sandbox

_POLL_S = 10.0  # the default of Prefect's workers
_SEED = 5

Measured = dict[str, list[Sweep]]


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        earlier: Trainings of the earlier sweep of our pool; 0: none, its history is empty.
        trainings: Trainings of each sweep.
        scale: Of their steps.
        rows: Of the table that they read.
        pause_s: Seconds between the start of a worker and the submission.
    """

    earlier: int = 20
    trainings: int = 16
    scale: float = 1.0
    rows: int = 150_000
    pause_s: float = WARM_UP_S


QUICK = Size(earlier=0, trainings=2, scale=0.05, rows=10_000, pause_s=3.0)


async def measure(
    sandbox: Sandbox, contenders: list[Contender], repeats: int, size: Size, folder: Path
) -> tuple[Sweep | None, Measured]:
    """The earlier sweep of our pool, if there is one, and every contender's sweeps."""
    chance = random.Random(_SEED)
    ours = next(one for one in CONTENDERS if one.name == "ours")
    trainings = sweep(size.trainings, _SEED, size.scale)
    found: Measured = {one.name: [] for one in contenders}
    first, history = None, None
    async with get_client() as client:
        deployments = await deployed((OURS, PROCESS))
        if size.earlier and any(one.pool == OURS for one in contenders):
            earlier = sweep(size.earlier, _SEED + 1, size.scale)
            _say(f"earlier sweep: {len(earlier)} trainings in our pool, whose history is empty")
            first = await run_sweep(
                sandbox, client, ours, deployments, earlier, folder / "earlier", pause_s=size.pause_s
            )
            _say(_line("earlier", first))
            history = folder / "earlier" / "state" / "history.db"
        for repeat in range(repeats):
            for contender in chance.sample(contenders, k=len(contenders)):
                # A poll's phase is chance.
                phase_s = chance.uniform(0.0, _POLL_S) if contender.name == "process" else 0.0
                done = await run_sweep(
                    sandbox,
                    client,
                    contender,
                    deployments,
                    trainings,
                    folder / f"{contender.name}-{repeat}",
                    history=history if contender.pool == OURS else None,
                    pause_s=size.pause_s + phase_s,
                )
                found[contender.name].append(done)
                _say(_line(contender.name, done))
    return first, found


def claims_of(numbers: dict[str, list[Figures]], changed: list[str]) -> list[Claim]:
    """What is claimed of the contenders that were measured.

    Args:
        numbers: Figures of each sweep, by contender.
        changed: Names of trainings whose loss was not the same everywhere.
    """
    everything = [one for sweeps in numbers.values() for one in sweeps]
    claims = [
        at_most("trainings whose final loss is not the same everywhere", len(changed), 0),
        at_most("hand-overs in which two runs trained at once", sum(one.overlaps for one in everything), 0),
        at_most("runs that were moved off the device", sum(one.off_device for one in everything), 0),
    ]
    ours = numbers.get("ours")
    if not ours:
        return claims
    for name, words, bound in (
        ("process", "process worker's defaults", 0.60),
        ("process-fast", "process worker's fastest poll", 0.75),
    ):
        theirs = numbers.get(name)
        if theirs:
            makespan = median_of(ours, "makespan_s") / median_of(theirs, "makespan_s")
            idle = median_of(ours, "idle_s") / median_of(theirs, "idle_s")
            claims.append(at_most(f"makespan: ours / {words}", makespan, bound))
            claims.append(at_most(f"device idle between trainings: ours / {words}", idle, 0.10))
    gaps = [gap for one in ours for gap in one.prepared_gaps_s]
    shares = [one.prepared_share for one in ours if one.prepared_share is not None]
    if gaps:
        claims.append(
            at_most("median seconds from Saving to the prepared run's first step", statistics.median(gaps), 0.05)
        )
    claims.append(at_least("hand-overs prepared in time", statistics.fmean(shares), 0.90))
    return claims


def details_of(first: Sweep | None, measured: Measured, numbers: dict[str, list[Figures]]) -> dict[str, Any]:
    """Medians of every contender, their ratios to ours, and every sweep's figures."""
    names = ("makespan_s", "mean_jct_s", "training_s", "idle_s")
    medians = {
        contender: {name: round(median_of(sweeps, name), 2) for name in names} for contender, sweeps in numbers.items()
    }
    ratios = {}
    if "ours" in numbers:
        ours = medians["ours"]
        ratios = {
            contender: {name: round(ours[name] / of_theirs[name], 3) for name in ("makespan_s", "mean_jct_s", "idle_s")
                        if of_theirs[name]}
            for contender, of_theirs in medians.items() if contender != "ours"
        }  # fmt: skip
    return {
        "contenders": {one.name: one.about for one in CONTENDERS if one.name in numbers},
        "median": medians,
        "ours_to_theirs": ratios,
        "first_sweep_with_an_empty_history": _rounded(figures(first.runs, first.submitted)) if first else None,
        "all": {contender: [_rounded(one) for one in sweeps] for contender, sweeps in numbers.items()},
        "marks": {
            contender: [[_from_submission(run, one.submitted) for run in one.runs] for one in sweeps]
            for contender, sweeps in measured.items()
        },
    }


def _from_submission(run: Any, submitted: float) -> dict[str, Any]:
    times = {name: round(getattr(run, name) - submitted, 3)
             for name in ("began", "prepared", "first_step", "trained", "saved")}  # fmt: skip
    return {"name": run.name, **times, "loss": run.loss}


def _rounded(one: Figures) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 3)
        return [round(item, 3) for item in value] if isinstance(value, tuple) else value

    return {name: short(value) for name, value in asdict(one).items()}


def _line(name: str, done: Sweep) -> str:
    one = figures(done.runs, done.submitted)
    share = "-" if one.prepared_share is None else f"{one.prepared_share:.0%}"
    gap = f"{statistics.median(one.prepared_gaps_s):.3f} s" if one.prepared_gaps_s else "-"
    return (
        f"{name:17} makespan {one.makespan_s:6.1f} s, mean JCT {one.mean_jct_s:6.1f} s, "
        f"trained {one.training_s:6.1f} s, idle {one.idle_s:6.2f} s, prepared in time {share}, then {gap}"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="small trainings, ours against the fastest poll, once")
    parser.add_argument("--repeats", type=int, default=3, help="sweeps of each contender (default: 3)")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in CONTENDERS], help="only these contenders")
    parser.add_argument("--poll", help=f"seconds between the polls of process-fast (default: {FASTEST_POLL})")
    parser.add_argument("--out", type=Path, help="folder for a picture and the workers' logs")
    options = parser.parse_args()
    if not enough_cores():
        print("This machine has no cores 0 and 1 for us: the sweep needs both.", file=sys.stderr)
        return 2
    chosen = options.only or (["ours", "process-fast"] if options.quick else [one.name for one in CONTENDERS])
    contenders = [one for one in CONTENDERS if one.name in chosen]
    if options.poll is not None:
        contenders = [asking_every(options.poll, one) if one.name == "process-fast" else one for one in contenders]
    repeats, size = (1, QUICK) if options.quick else (options.repeats, Size())
    os.sched_setaffinity(0, {HOST_CORE})  # all that is started from here inherits it
    numeric = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    pools = {OURS: "gpu", PROCESS: "process"}
    with served(pools, settings={"CUDA_VISIBLE_DEVICES": "", **numeric}) as sandbox:
        table = sandbox.folder / "table.csv"
        write_table(table, size.rows)
        sandbox.env[ENV_DATA] = str(table)
        try:
            folder = sandbox.folder / "sweeps"
            first, measured = asyncio.run(measure(sandbox, contenders, repeats, size, folder))
        finally:
            if options.out is not None:
                keep_logs(sandbox, options.out)
    numbers = {name: [figures(one.runs, one.submitted) for one in sweeps] for name, sweeps in measured.items()}
    if options.out is not None:
        lanes = {name: sweeps[0] for name, sweeps in measured.items()}
        if first is not None:
            lanes = {"first sweep": first, **lanes}
        draw(lanes, options.out / "sweep.png")
    claims = claims_of(numbers, changed_losses(one.runs for sweeps in measured.values() for one in sweeps))
    if options.quick:  # too few and too short to claim more than that nothing goes wrong
        claims = [claim for claim in claims if claim.asked == "<= 0"] + [
            replace(claim, asked="-", holds=True) for claim in claims if claim.asked != "<= 0"
        ]
    details = details_of(first, measured, numbers)
    if not options.json:
        del details["marks"]
    return report("sweep", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
