"""Does every run end once, whatever happens to a Slurm cluster?

Three nodes of a real Slurm, all on this machine, and a pool with 20 runs in flight at any time, each of which trains
for a while with checkpoints. Meanwhile slurmctld is away, nodes lose their power, are set DOWN and drained,
allocations are cancelled, preempted, requeued and run out of time, agents are killed, and the worker dies between
sbatch and its record. In the end every run must be Completed once, must have said its end once, and must have the
result of an undisturbed one; and no job may be left in Slurm's queue.

    python -m benchmarks.slurm_faults [--json] [--quick] [--repeats N] [--runs N] [--minutes N]

Prefect keeps its data in PostgreSQL, as it advises for so many runs. Needs root, PostgreSQL, and Slurm (see
deployments/slurm/cluster.sh), whose cluster has no accounting: that fault is there all the
time. The trainings are tiny and mostly sleep: this is about what becomes of runs, not about speed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from prefect.client.orchestration import get_client

from benchmarks._claims import at_least, at_most, command_line, report
from benchmarks._host.served import served
from benchmarks.faults.notes import Notes, serve
from benchmarks.faults.soak import Fault, Tally
from benchmarks.slurm_faults.faults import FAULTS
from benchmarks.slurm_faults.soak import SlurmSoak
from prefect_gpu.lab.sandbox import Sandbox, SandboxError, wait_until
from prefect_gpu.lab.slurm_nodes import SlurmLab, started
from tests.postgres import for_prefect, postgres_server

POOL = "faults"
NODES = 3
_NUMBER = 91  # of its cluster: the tests' have smaller ones


async def soak(
    sandbox: Sandbox, lab: SlurmLab, folder: Path, chosen: list[Fault], runs: int, devices: int, options: Namespace
) -> tuple[Tally, int, int]:
    """All faults in this order.

    Returns:
        What became of the runs; the jobs that are left in Slurm's queue at the end; and the records of allocations.
    """
    notes = Notes()
    with serve(lab.gateway, notes) as notes_url:
        async with get_client() as client:
            running = SlurmSoak(
                sandbox, client, POOL, folder, lab=lab, devices=devices, away_s=options.away_seconds,
                notes=notes, notes_url=notes_url, in_flight=runs, steps=20 if options.quick else 240, step_s=1.0,
                seed=options.seed,
            )  # fmt: skip
            await running.save_block()
            try:
                tally = await running.run(chosen, options.minutes * 60.0)
                with contextlib.suppress(SandboxError):  # what is left is told
                    await asyncio.to_thread(
                        wait_until, lambda: not (lab.queue() or running.records()), what="the end", every_s=1.0
                    )
                return tally, len(lab.queue()), len(running.records())
            finally:
                running.stop()


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="a few runs, and once each fault that takes no time")
    parser.add_argument("--repeats", type=int, default=5, help="how often each fault happens (default: 5)")
    parser.add_argument("--runs", type=int, default=20, help="runs in flight at any time (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the faults, and whom they hit")
    parser.add_argument("--away-seconds", type=float, default=120.0, help="how long slurmctld is away (default: 120)")
    parser.add_argument("--minutes", type=float, default=1e6, help="after so many, no other fault begins")
    parser.add_argument("--only", default="", help="only faults with these words in their names")
    options = parser.parse_args()
    repeats, runs = (1, 4) if options.quick else (options.repeats, options.runs)
    kinds = [one for one in FAULTS if (one.quick or not options.quick) and options.only in one.name]
    chance = random.Random(options.seed)
    chosen = [fault for _ in range(repeats) for fault in chance.sample(kinds, len(kinds))]
    devices = -(-runs // NODES)
    with (
        tempfile.TemporaryDirectory(prefix="prefect-gpu-slurm-faults-") as folder,
        started(NODES, devices, _NUMBER) as lab,
        postgres_server() as database,
        served({POOL: "gpu"}, settings=for_prefect(database), host="0.0.0.0") as sandbox,
    ):
        tally, jobs, records = asyncio.run(soak(sandbox, lab, Path(folder), chosen, runs, devices, options))
    claims = [
        at_most("runs that were lost, ended twice, or came to another result", len(tally.wrong), 0),
        at_least("faults of the kind that happened least", min(tally.times[one.name] for one in kinds), repeats),
        at_most("jobs left in Slurm's queue", jobs, 0),
        at_most("records of allocations that are left", records, 0),
    ]
    details = {
        "runs completed": tally.completed,
        "wrong": tally.wrong,
        "shown as crashed for a moment": tally.crashed_for_a_moment,
        "faults": {
            one.name: {"times": tally.times[one.name], "runs tried again": tally.hit[one.name]} for one in kinds
        },
    }
    return report("slurm_faults", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
