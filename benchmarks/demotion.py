"""What do runs that still learn gain when those that have converged give way?

A sweep of real PyTorch trainings of equal length that share one virtual device, which is core 0: every run does its
steps there. Core 1 is the host's and does all the rest. A third of the runs have a learning rate with which they
converge early; they go on with their remaining epochs all the same. The sweep is run with demotion
(``converged="yield"``) and without (``"ignore"``), alternately, each time by a fresh worker with an empty history.

    python -m benchmarks.demotion [--json] [--quick] [--repeats N] [--epochs N]

Limits: one core is a device that runs share without loss, which a GPU is not; the others have learning rates with which
they learn to the end, as the claim is about such sweeps; all are submitted at once.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient, get_client

from benchmarks import _demotion_flow
from benchmarks._claims import Claim, at_least, at_most, command_line, report
from benchmarks._demotion_flow import HOST_CORE
from benchmarks._host.served import completed, deploy, recorded, served, settings
from prefect_gpu.lab.sandbox import Sandbox

POOL = "gpus"
EARLY, LATE = (0.5, 0.3, 0.4), (0.002, 0.001, 0.0015, 0.0008, 0.0012, 0.0005)
LEARNING_RATES = tuple(rate for k in range(3) for rate in (EARLY[k], *LATE[2 * k : 2 * k + 2]))
MODES = {"with": "yield", "without": "ignore"}
_WARM_UP_S = 10.0
_DEADLINE_S = 900.0


@dataclass(frozen=True)
class Trained:
    """One run of a sweep; its loss after the last epoch, and the seconds from its submission to its end."""

    lr: float
    jct_s: float
    loss: float
    demoted_s: float


@dataclass(frozen=True)
class Sweep:
    """One sweep, with the seconds from its first submission to its last end."""

    makespan_s: float
    runs: list[Trained]

    def mean_jct_s(self, rates: tuple[float, ...]) -> float:
        """Of the runs with these learning rates."""
        return statistics.fmean(run.jct_s for run in self.runs if run.lr in rates)


async def sweep(
    sandbox: Sandbox,
    client: PrefectClient,
    deployment: UUID,
    mode: str,
    rates: tuple[float, ...],
    epochs: int,
    name: str,
) -> Sweep:
    """Start a worker, submit everything, wait for the end, stop the worker.

    Raises:
        SandboxError: A run failed, or the time is over.
    """
    state = sandbox.folder / name
    env = settings(virtual_devices="1", preload="torch,sklearn.datasets", state_dir=str(state))
    worker = sandbox.start_worker(POOL, name=name, env=env)
    try:
        await asyncio.sleep(_WARM_UP_S)
        asked = {"exclusive": False, "gpu_memory": "800MiB", "converged": MODES[mode]}
        rate_of: dict[str, float] = {}
        for lr in rates:
            run = await client.create_flow_run_from_deployment(
                deployment, parameters={"lr": lr, "seed": 1, "epochs": epochs}, job_variables=asked
            )
            rate_of[str(run.id)] = lr
        ids = [UUID(run_id) for run_id in rate_of]
        await completed(client, worker, ids, deadline_s=_DEADLINE_S, every_s=1.0)
        rows = await recorded(state, ids, worker)
    finally:
        worker.terminate(timeout_s=20.0)
    times = {row.run_id: (row.submitted_at or 0.0, row.ended_at or 0.0) for row in rows}
    runs = [
        Trained(
            rate_of[row.run_id],
            times[row.run_id][1] - times[row.run_id][0],
            row.final_loss or 0.0,
            row.demoted_s or 0.0,
        )
        for row in rows
    ]
    first, last = min(begin for begin, _ in times.values()), max(end for _, end in times.values())
    return Sweep(last - first, sorted(runs, key=lambda run: run.lr))


async def measure(sandbox: Sandbox, repeats: int, rates: tuple[float, ...], epochs: int) -> dict[str, list[Sweep]]:
    """All sweeps, by mode; which mode goes first changes from one repeat to the next."""
    found: dict[str, list[Sweep]] = {mode: [] for mode in MODES}
    async with get_client() as client:
        deployment = await deploy(Path(_demotion_flow.__file__), "fit", POOL)
        for repeat in range(repeats):
            for mode in sorted(MODES, reverse=bool(repeat % 2)):
                done = await sweep(sandbox, client, deployment, mode, rates, epochs, f"{mode}-{repeat}")
                found[mode].append(done)
                print(
                    f"{mode:>8}: makespan {done.makespan_s:.1f} s, JCT of the learning "
                    f"{done.mean_jct_s(LATE):.1f} s, of the converged {done.mean_jct_s(EARLY):.1f} s, demoted for "
                    f"{', '.join(f'{run.demoted_s:.0f}' for run in done.runs)} s",
                    file=sys.stderr,
                )
    return found


def claims_of(found: dict[str, list[Sweep]]) -> list[Claim]:
    """Medians of the repeats are compared, and losses run by run."""

    def median(mode: str, what: Any) -> float:
        return statistics.median(what(one) for one in found[mode])

    others = {mode: median(mode, lambda one: one.mean_jct_s(LATE)) for mode in MODES}
    makespans = {mode: median(mode, lambda one: one.makespan_s) for mode in MODES}
    losses: dict[float, set[float]] = {}
    for one in (one for sweeps in found.values() for one in sweeps):
        for run in one.runs:
            losses.setdefault(run.lr, set()).add(run.loss)
    best = {mode: min(run.loss for one in found[mode] for run in one.runs) for mode in MODES}
    return [
        at_least("mean JCT of the runs that learn: shorter by", 1.0 - others["with"] / others["without"], 0.15),
        at_most("makespan: with / without", makespans["with"] / makespans["without"], 1.02),
        at_most("best loss of the sweep: with − without", best["with"] - best["without"], 0.0),
        at_most("runs whose final loss is not the same everywhere", sum(len(one) > 1 for one in losses.values()), 0),
    ]


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="under a minute: one repeat of three short runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=240, help="of each run (default: 240, some 5 s alone)")
    options = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("Two cores are needed: one is the device, and one is the host's.", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {HOST_CORE})  # and so the server, the worker and all that runs start with
    repeats, rates, epochs = options.repeats, LEARNING_RATES, options.epochs
    if options.quick:
        repeats, rates, epochs = 1, LEARNING_RATES[:3], 200
    with served({POOL: "gpu"}) as sandbox:
        found = asyncio.run(measure(sandbox, repeats, rates, epochs))
    details = {
        "learning_rates": {"converge early": EARLY, "learn to the end": LATE},
        "epochs": epochs,
        "median_s": {
            mode: {
                "makespan": statistics.median(one.makespan_s for one in sweeps),
                "jct_learning": statistics.median(one.mean_jct_s(LATE) for one in sweeps),
                "jct_converged": statistics.median(one.mean_jct_s(EARLY) for one in sweeps),
            }
            for mode, sweeps in found.items()
        },
        "makespans_s": {mode: [round(one.makespan_s, 1) for one in sweeps] for mode, sweeps in found.items()},
        "all": {mode: [asdict(one) for one in sweeps] for mode, sweeps in found.items()},
    }
    return report("demotion", claims_of(found), details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
