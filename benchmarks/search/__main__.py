"""Does a sweep with rungs and learned costs find as good a model sooner than plain Optuna?

Two tuning problems on the photographs that ship with scikit-learn, each with five parameters that decide both what a
training is worth and what it costs: gradient boosting, and a small convolutional network in PyTorch. A full training
has 81 steps and takes two seconds to half a minute. Three contenders have 150 seconds each, one after the other, on
two devices:

- ``ours``: ``sweep`` with ``asha`` and the learned cost;
- ``plain``: Optuna's ``study.optimize`` in the same pool, with Optuna's defaults: TPE and the median pruner;
- ``process``: the same with Prefect's process worker, which may have two runs and asks for runs each 0.5 s.

    python -m benchmarks.search [--json] [--quick] [--seeds N] [--problem NAME ...] [--only NAME ...] [--seconds S]

With five seeds that is an hour and a half.

All have the same flows, the same number of trainings submitted at a time, and TPE with the same seeds; contenders take
turns in an order that is drawn for each seed. *Loss* is the best validation loss that any training has reported so far.
The claim: in the median of the seeds, ours reaches the loss that the other has at the end of its time in at most 0.6 of
that time. Where the other has found its best earlier, ``to_their_last`` is stricter: the time is that of this moment.

It needs the extra ``frameworks``, or PyTorch alone, and PostgreSQL, where Prefect keeps its data (not for --quick).
Devices are virtual; trainings compute on the machine's cores.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import optuna

from benchmarks._claims import Claim, at_most, command_line, report
from benchmarks._host.former import ROOT
from benchmarks._host.served import deploy, served
from benchmarks.search.contenders import (
    CONTENDERS,
    OURS,
    PROCESS,
    Curve,
    Size,
    load,
    searched,
    start_workers,
)
from benchmarks.search.problems import SPACES
from prefect_gpu.lab.sandbox import Sandbox
from tests.postgres import for_prefect, postgres_server

QUICK = Size(seconds=12.0, steps=27)
_SHARE = 0.6
_WARM_UP_S = 15.0

Curves = dict[str, dict[str, list[Curve]]]
"""By problem and contender, one of each seed."""


def measure(
    sandbox: Sandbox, problems: list[str], names: list[str], seeds: int, size: Size
) -> tuple[Curves, list[float]]:
    """All searches, one after the other, and the load of the machine at the end of each."""
    workers = start_workers(sandbox)
    deployments = asyncio.run(_deployed(problems))
    for worker in workers.values():
        worker.wait_for_output("started!", timeout_s=180.0)
    time.sleep(_WARM_UP_S if size.seconds > QUICK.seconds else 3.0)
    found: Curves = {problem: {name: [] for name in names} for problem in problems}
    loads = []
    chance = random.Random(0)
    for seed in range(seeds):
        for problem in problems:
            for name in chance.sample(names, k=len(names)):
                folder: Path = sandbox.folder / "searches" / f"{problem}-{name}-{seed}"
                curve = searched(name, problem, seed, size, folder, deployments[problem, CONTENDERS[name][1]])
                found[problem][name].append(curve)
                loads.append(load())
                words = f"loss {curve.loss:.4f}, {curve.trials} trials, {curve.steps} steps, load {loads[-1]}"
                print(f"{problem} {seed} {name:>8}: {words}", file=sys.stderr, flush=True)
    return found, loads


async def _deployed(problems: list[str]) -> dict[tuple[str, str], UUID]:
    file = Path(__file__).with_name("flows.py")
    return {(problem, pool): await deploy(file, problem, pool) for problem in problems for pool in (OURS, PROCESS)}


def shares(ours: list[Curve], theirs: list[Curve], seconds: float) -> list[float]:
    """By seed: our time until the other's final loss, in parts of the time that both had; infinite: never."""
    return [mine.reached(other.loss) / seconds for mine, other in zip(ours, theirs, strict=True)]


def claims_of(found: Curves, seconds: float) -> list[Claim]:
    """What is claimed of the contenders that were measured."""
    return [
        at_most(
            f"{problem}: part of the time in which ours reaches the final loss of {name}",
            round(statistics.median(shares(curves["ours"], theirs, seconds)), 3),
            _SHARE,
        )
        for problem, curves in found.items()
        if "ours" in curves
        for name, theirs in curves.items()
        if name != "ours" and theirs
    ]


def details_of(found: Curves, loads: list[float], size: Size) -> dict[str, Any]:
    """Everything that was measured; what is infinite is null, as JSON has no such number."""
    told: dict[str, Any] = {"seconds": size.seconds, "load": loads, "problems": {}}
    for problem, curves in found.items():
        mine = curves.get("ours", [])
        told["problems"][problem] = {
            name: {
                "final_loss": [round(one.loss, 5) for one in searches],
                "trials": [one.trials for one in searches],
                "steps": [one.steps for one in searches],
                **({} if name == "ours" or not mine else _compared(mine, searches, size.seconds)),
                "curves": [one.better for one in searches],
            }
            for name, searches in curves.items()
        }
    return told


def _compared(mine: list[Curve], theirs: list[Curve], seconds: float) -> dict[str, Any]:
    to_last = [
        one.reached(other.loss) / other.better[-1][0] if other.better else 0.0
        for one, other in zip(mine, theirs, strict=True)
    ]
    return {
        "share_of_time": [_finite(share) for share in shares(mine, theirs, seconds)],
        "to_their_last": [_finite(share) for share in to_last],
    }


def _finite(value: float) -> float | None:
    return round(value, 3) if value < float("inf") else None


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="12 seconds of boosting, ours against plain Optuna, one seed")
    parser.add_argument("--seeds", type=int, default=5, help="searches of each contender and problem (default: 5)")
    parser.add_argument("--problem", nargs="+", choices=list(SPACES), help="only these problems")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="only these contenders")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="of each search (default: 150)")
    options = parser.parse_args()
    size = QUICK if options.quick else Size(seconds=options.seconds)
    problems = options.problem or (["boosted"] if options.quick else list(SPACES))
    names = options.only or (["ours", "plain"] if options.quick else list(CONTENDERS))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    numeric = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with ExitStack() as stack:
        # On SQLite, one request to Prefect now and then locks all others out for a minute.
        database = {} if options.quick else for_prefect(stack.enter_context(postgres_server()))
        told = {"PYTHONPATH": str(ROOT), **numeric, **database}
        sandbox = stack.enter_context(served({OURS: "gpu", PROCESS: "process"}, settings=told))
        found, loads = measure(sandbox, problems, names, 1 if options.quick else options.seeds, size)
    claims = claims_of(found, size.seconds)
    if options.quick:  # so short a search says nothing but that everybody trains
        idle = sum(not one.steps for curves in found.values() for searches in curves.values() for one in searches)
        claims = [at_most("searches that trained nothing", idle, 0)]
    details = details_of(found, loads, size)
    if not options.json:
        for curves in details["problems"].values():
            for one in curves.values():
                del one["curves"]
    return report("search", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
