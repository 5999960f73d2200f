"""Do allocations come as runs are queued, and go as nobody needs them, and is none forgotten?

500 tiny runs are queued at once in a pool on six nodes of a real Slurm on this machine; it begins with no allocation.
While they run, Slurm's queue is looked at. In the end each run must have completed once, Slurm's queue must be empty,
and no allocation may have been without a run for longer than its time-out, which is 20 s, and 5 s more: both sides
look once a second, Slurm writes whole seconds, and a job takes a moment to end. Its start, until its first run, does
not count.

    python -m benchmarks.slurm_scale [--json] [--quick] [--runs N]

Needs root, PostgreSQL, where Prefect keeps its data, and Slurm (see deployments/slurm/cluster.sh). All nodes are one
machine's: with few cores, Prefect's server and the starts of runs are most of the time that it takes.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefect.client.orchestration import get_client

from benchmarks import _slurm_tiny
from benchmarks._claims import at_least, at_most, command_line, report
from benchmarks._host.served import completed, deploy, served, settings
from prefect_gpu.blocks import GpuSlurm, SlurmShape
from prefect_gpu.lab.sandbox import Process, Sandbox, wait_until
from prefect_gpu.lab.slurm_nodes import Allocation, SlurmLab, started
from tests.postgres import for_prefect, postgres_server

POOL = "gpus"
NODES, DEVICES = 6, 2
IDLE_S, MORE_S = 20.0, 5.0
_NUMBER = 92  # of its cluster: the tests' have smaller ones
_DEADLINE_S = 3600.0
_AT_ONCE = 10
_LOOK_S = 1.0


class Watch:
    """How many allocations run, looked at once a second."""

    def __init__(self, lab: SlurmLab) -> None:
        self._lab = lab
        self.counts: list[int] = []

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            running = await asyncio.to_thread(self._lab.command, "squeue", "--noheader", "--states=RUNNING")
            self.counts.append(len(running.splitlines()))
            await asyncio.sleep(_LOOK_S)


async def pool(lab: SlurmLab, sandbox: Sandbox, runs: int, notes: Path, watch: Watch) -> float:
    """Queue all runs, and wait until they have completed and all was given back. Gives the seconds until the former."""
    shape = SlurmShape(name="one", time="60", gres=f"gpu:{DEVICES}", virtual_devices=DEVICES, maximum=NODES)
    block = GpuSlurm(shapes=[shape], conf=lab.conf, idle_seconds=IDLE_S, poll_seconds=1.0)
    await block.save(POOL, overwrite=True)  # type: ignore[misc]
    env = settings(slurm=POOL, advertise=lab.gateway, channel_host="0.0.0.0", page="false")
    worker = sandbox.start_worker(POOL, env=env, wait=False)
    watching = asyncio.create_task(watch.watch())
    try:
        worker.wait_for_output("Serving pool")
        begin = time.monotonic()
        await _queue(runs, notes, worker)
        took_s = time.monotonic() - begin
        await asyncio.to_thread(wait_until, lambda: not lab.queue(), what="the nodes to be given back", timeout_s=300.0)
        await asyncio.sleep(2 * _LOOK_S)
        return took_s
    finally:
        watching.cancel()
        worker.terminate(timeout_s=20.0)


async def _queue(runs: int, notes: Path, worker: Process) -> None:
    async with get_client() as client:
        deployment = await deploy(Path(_slurm_tiny.__file__), "tiny", POOL)
        few = asyncio.Semaphore(_AT_ONCE)

        async def submit(number: int) -> object:
            async with few:
                return await client.create_flow_run_from_deployment(
                    deployment,
                    parameters={"notes": str(notes), "seconds": 0.2},
                    idempotency_key=f"tiny {number}",  # a busy server may be asked twice
                )

        made = await asyncio.gather(*map(submit, range(runs)))
        await completed(client, worker, [run.id for run in made], deadline_s=_DEADLINE_S, every_s=5.0)  # type: ignore[attr-defined]


@dataclass(frozen=True, order=True)
class Idle:
    """A time in which an allocation had no run.

    Attributes:
        seconds: Its length.
        after_s: Seconds from the allocation's start until then.
        runs: How many the allocation had had before.
        last: Whether it had none after it.
    """

    seconds: float
    after_s: float
    runs: int
    last: bool


def idle_times(allocations: Sequence[Allocation], notes: Path) -> list[Idle]:
    """When allocations were without a run: between two, after the last one, or all the time."""
    told = [line.split() for line in notes.read_text().splitlines()]
    spans = [(node, float(begin), float(end)) for node, begin, end in told]
    found = []
    for one in allocations:
        whole = one.begin - 1.0, one.end + 1.0  # whole seconds
        own = sorted((begin, end) for node, begin, end in spans if node == one.names and whole[0] <= begin <= whole[1])
        until = own[0][0] if own else one.begin
        for number, (begin, end) in enumerate([*own, (one.end, one.end)]):
            found.append(Idle(begin - until, until - one.begin, number, number == len(own)))
            until = max(until, end)
    return sorted(found, reverse=True)


def main() -> int:
    """Run the benchmark; the exit code is 1 when a claim does not hold."""
    parser = command_line(__doc__, quick="30 runs")
    parser.add_argument("--runs", type=int, default=500, help="runs that are queued (default: 500)")
    options = parser.parse_args()
    runs = 30 if options.quick else options.runs
    with (
        tempfile.TemporaryDirectory(prefix="prefect-gpu-slurm-scale-") as folder,
        started(NODES, DEVICES, _NUMBER) as lab,
    ):
        notes, watch = Path(folder) / "notes", Watch(lab)
        with (
            postgres_server() as database,
            served({POOL: "gpu"}, settings=for_prefect(database), host="0.0.0.0") as sandbox,
        ):
            took_s = asyncio.run(pool(lab, sandbox, runs, notes, watch))
        allocations, left = lab.allocations(), len(lab.queue())
        ran, idle = len(notes.read_text().splitlines()), idle_times(allocations, notes)
    claims = [
        at_most("runs that did not run, or more than once", abs(ran - runs), 0),
        at_most("allocations at the beginning", watch.counts[0], 0),
        at_least("allocations at once, at most", max(watch.counts), NODES),
        at_most("allocations at the end", watch.counts[-1], 0),
        at_most("jobs left in Slurm's queue", left, 0),
        at_most("longest time without a run, seconds", idle[0].seconds, IDLE_S + MORE_S),
    ]
    details = {
        "runs": runs,
        "seconds until the last had completed": took_s,
        "allocations": len(allocations),
        "longest times without a run": [asdict(one) for one in idle[:12]],
    }
    return report("slurm_scale", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
