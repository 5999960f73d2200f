"""Do stoppable trainings of mixed sizes end sooner than in the release before, and than under SRSF?

A sweep of 60 trainings arrives at random at pools with four virtual devices each: runs on one, two and four devices,
of 3 to 45 seconds, at a load of 1.4. All are `preemptible`, and carry on from their checkpoints. Three pools of one
real Prefect server, each with a real worker of its own, play the same sweep at the same time, so that whatever else
the machine does slows all of them:

- ``adaptive``: the default profile;
- ``srsf``: shortest remaining service first, which stops runs as well (Tiresias, Muri), with all other settings alike;
- ``before``: ``adaptive`` of the last commit before runs that may be stopped were chosen as a whole. Its worker and
  its runs have the package of that commit.

    python -m benchmarks.stoppable [--json] [--quick] [--repeats N] [--runs N] [--seed N] [--keep FOLDER]

Prefect's server has a private PostgreSQL: SQLite cannot take what three pools write. With ``--quick`` it has SQLite.

What is real: server, workers, warm processes, Prefect's engine, checkpoints, stopping and starting, and in each step
one step of SGD on scikit-learn's digits, whose result must be the same to the last bit as that of an undisturbed
training. What is not: the devices are virtual, and what is left of a step's 0.25 s is *slept*, as two cores cannot
compute for twelve devices. How long a run trains is learned: each pool has had eight runs of the same flow before.

*JCT* is from a run's creation in Prefect until it is Completed there. *Stops* are counted from the states that
Prefect has of a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client

from benchmarks._claims import Claim, at_most, below, command_line, report
from benchmarks._host.served import served
from benchmarks.stoppable.contenders import CONTENDERS, Contender, Passed, play, players
from benchmarks.stoppable.trainings import LONGEST_S, Training, draw, earlier, quick
from prefect_gpu.lab.sandbox import Sandbox
from tests.postgres import for_prefect, missing, postgres_server

_SEED = 201
_MOST_STOPS = 3

Measured = dict[str, list[Passed]]


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        runs: Trainings of a sweep.
        longest_s: Seconds of training.
        earlier: How many runs each pool has had before.
        warm_up_s: Seconds until each worker's warm interpreter has imported everything, on a busy machine.
        settle_s: Seconds from the earlier runs until the workers have learned from them.
    """

    runs: int = 60
    longest_s: float = LONGEST_S
    earlier: int = 8
    warm_up_s: float = 30.0
    settle_s: float = 10.0


QUICK = Size(longest_s=6.0, earlier=2, warm_up_s=3.0, settle_s=1.0)


async def measure(
    sandbox: Sandbox, contenders: Sequence[Contender], sweeps: Mapping[int, Sequence[Training]], size: Size
) -> tuple[Measured, list[float]]:
    """Each contender's sweeps, and the load of the machine at the end of each.

    Args:
        sweeps: By their seeds.
    """
    everybody = players(sandbox, contenders)
    found: Measured = {player.name: [] for player in everybody}
    load = []
    async with get_client() as client:
        for player in everybody:
            await player.ready()
        await asyncio.sleep(size.warm_up_s)
        await play(client, "earlier", earlier(size.earlier, size.longest_s), everybody)
        await asyncio.sleep(size.settle_s)
        for seed, trainings in sweeps.items():
            for name, passed in (await play(client, f"sweep-{seed}", trainings, everybody)).items():
                found[name].append(passed)
                print(_line(seed, name, passed), file=sys.stderr, flush=True)
            load.append(round(os.getloadavg()[2], 1))
    return found, load


def _line(seed: int, name: str, one: Passed) -> str:
    return (
        f"{seed}, {name:>8}: mean {one.mean_s:6.1f} s, p99 {one.p99_s:6.1f} s, makespan {one.makespan_s:6.1f} s, "
        f"{one.stops} stops, at most {one.most_stops}; {one.lost} steps lost, {one.twice} done twice, "
        f"{one.different} results differ, {one.failed} failed; estimates off by {one.off}"
    )


def claims_of(found: Mapping[str, Sequence[Passed]]) -> list[Claim]:
    """Medians, over the sweeps, of the mean JCT divided by another contender's for the same sweep."""
    ours, claims = found["adaptive"], []
    if "before" in found:
        ratio = _ratio(ours, found["before"])
        claims.append(at_most("mean JCT / that of the release before, median", ratio, 0.9))
    if "srsf" in found:
        claims.append(below("mean JCT / that of SRSF, median", _ratio(ours, found["srsf"]), 1.0))
    everything = [one for passes in found.values() for one in passes]
    return [
        *claims,
        at_most("runs that did not complete", sum(one.failed for one in ours), 0),
        at_most("stops of the run that was stopped most", max(one.most_stops for one in ours), _MOST_STOPS),
        at_most("steps that are missing", sum(one.lost for one in everything), 0),
        at_most("results unlike the undisturbed run's", sum(one.different for one in everything), 0),
    ]


def _ratio(ours: Sequence[Passed], theirs: Sequence[Passed]) -> float:
    return statistics.median(mine.mean_s / other.mean_s for mine, other in zip(ours, theirs, strict=True))


def details_of(found: Mapping[str, Sequence[Passed]], load: Sequence[float], *, whole: bool) -> dict[str, Any]:
    """Medians of each contender, every sweep, and the load of the machine.

    Args:
        whole: With the times of each run.
    """
    names = ("mean_s", "p99_s", "makespan_s", "stops", "most_stops", "twice", "failed")
    medians = {
        contender: {name: round(statistics.median(getattr(one, name) for one in passes), 1) for name in names}
        for contender, passes in found.items()
    }
    every = {contender: [asdict(one) for one in passes] for contender, passes in found.items()}
    if not whole:
        for passes in every.values():
            for one in passes:
                del one["jct_s"]
    ratios = {
        other: [round(mine.mean_s / one.mean_s, 3) for mine, one in zip(found["adaptive"], passes, strict=True)]
        for other, passes in found.items()
        if other != "adaptive"
    }
    return {"median": medians, "mean_jct_to": ratios, "load_15_min": list(load), "all": every}


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: five short runs under adaptive, one is stopped")
    parser.add_argument("--repeats", type=int, default=3, help="drawn sweeps (default: 3)")
    parser.add_argument("--runs", type=int, default=60, help="trainings of a sweep (default: 60)")
    parser.add_argument("--seed", type=int, help=f"of the first sweep (default: {_SEED})")
    parser.add_argument("--only", nargs="+", choices=[one.name for one in CONTENDERS], help="only these contenders")
    parser.add_argument("--keep", type=Path, help="keep everything in this folder, which must not exist")
    parser.add_argument("--sqlite", action="store_true", help="Prefect's server has SQLite instead of PostgreSQL")
    options = parser.parse_args()
    options.sqlite |= options.quick
    if not options.sqlite and (lacking := missing()):
        parser.error(f"This needs {' and '.join(lacking)}; with --sqlite it does not.")
    size = replace(Size(), runs=options.runs)
    if options.quick:
        size, options.only = QUICK, options.only or ["adaptive"]
    chosen = {"adaptive", *(options.only or (one.name for one in CONTENDERS))}
    contenders = [one for one in CONTENDERS if one.name in chosen]
    first = options.seed or _SEED
    sweeps = {seed: draw(seed, size.runs, size.longest_s) for seed in range(first, first + options.repeats)}
    if options.quick:
        sweeps = {0: quick()}
    numeric = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    pools = {one.name: "gpu" for one in contenders}
    with contextlib.ExitStack() as stack:
        database = {} if options.sqlite else for_prefect(stack.enter_context(postgres_server()))
        more = {"CUDA_VISIBLE_DEVICES": "", **numeric, **database}
        sandbox = stack.enter_context(served(pools, folder=options.keep, settings=more))
        found, load = asyncio.run(measure(sandbox, contenders, sweeps, size))
    claims = claims_of(found)
    if options.quick:  # too few and too short to compare
        claims = [claim for claim in claims if "JCT" not in claim.name]
    return report("stoppable", claims, details_of(found, load, whole=options.json), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
