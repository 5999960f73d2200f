"""Many short trainings on a Slurm cluster: a pool's allocations against one ``sbatch`` for each training.

Forty real trainings (xgboost on one core, 3 to 20 seconds each, with what a script imports) on three nodes of a real
Slurm on this machine, each with one device: as a job array, the way people do it today, without Prefect; and as runs of
a pool that begins with no allocation. Both do the same work on the same nodes, one after the other.

    python -m benchmarks.slurm [--json] [--quick]

Needs root and Slurm (see deployments/slurm/cluster.sh). Limits: the nodes are name spaces of one machine, and share its
cores: with fewer than three, trainings slow each other down on both sides, and neither the server nor the worker has a
core of its own. Allocation time is Slurm's own, in whole seconds.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prefect.client.orchestration import get_client

from benchmarks import _slurm_training as training
from benchmarks._claims import Claim, at_most, command_line, report
from benchmarks._host.served import completed, deploy, served, settings
from prefect_gpu.blocks import GpuSlurm, SlurmShape
from prefect_gpu.lab.sandbox import Sandbox, SandboxError, wait_until
from prefect_gpu.lab.slurm_nodes import SlurmLab, started

POOL = "gpus"
NODES = 3
PRELOAD = "xgboost,sklearn.datasets,sklearn.model_selection"
_NUMBER = 90  # of its cluster: the tests' have smaller ones
SHORTEST_S, LONGEST_S = 3.0, 20.0
_DEADLINE_S = 1800.0


@dataclass(frozen=True)
class Side:
    """How one side did.

    Attributes:
        makespan_s: From the first submission to the last training's end.
        idle_s: From a training's end to the next one's first step on the same node, all such times together.
        unprepared_s: The part of that in which the next one was not prepared yet.
        trained_s: From first step to last, all trainings together.
        allocated_s: For which nodes were allocated, all together.
        allocations: How many there were.
    """

    makespan_s: float
    idle_s: float
    unprepared_s: float
    trained_s: float
    allocated_s: float
    allocations: int


def rounds_of(count: int, shortest_s: float, longest_s: float) -> list[int]:
    """Trees of each training, so that it lasts as long as asked on an idle core; short and long ones take turns.

    Later trees are quicker than earlier ones, so the longest training is done once, and looked at.

    Args:
        count: How many trainings; even.
    """
    ratio = longest_s / shortest_s
    seconds = [shortest_s * ratio ** (number / max(1, count - 1)) for number in range(count)]
    mixed = [one for pair in zip(seconds[: count // 2], seconds[: count // 2 - 1 : -1], strict=True) for one in pair]
    done_at = _seconds_of_trees(longest_s)
    return [bisect.bisect_left(done_at, one) + 1 for one in mixed]


class _EnoughError(Exception):
    """A training is looked at no longer."""


def _seconds_of_trees(longest_s: float) -> list[float]:
    """After how many seconds of a core each tree of a training is done, whoever else wants the core."""
    begun: list[float] = []
    done_at: list[float] = []

    def each(loss: float) -> None:
        done_at.append(time.process_time() - begun[0])
        if done_at[-1] >= longest_s:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        training.fit(1_000_000_000, lambda: begun.append(time.process_time()), each)
    return done_at


def side_of(notes: Path, begin: float, lab: SlurmLab, before: set[str]) -> Side:
    """What the trainings have noted, and Slurm of its jobs.

    Args:
        begin: When the first one was submitted.
        before: Jobs that were over by then.
    """
    lines = [line.split() for line in notes.read_text().splitlines()]
    spans: dict[str, list[tuple[float, float, float]]] = {}  # by node: begin, end, and when it was prepared
    for _, node, prepared, first, last, _ in lines:
        spans.setdefault(node, []).append((float(first), float(last), float(prepared)))
    pairs = [pair for some in spans.values() for pair in itertools.pairwise(sorted(some))]
    jobs = {job: seconds for job, seconds in lab.completed_jobs().items() if job not in before}
    every = [span for some in spans.values() for span in some]
    return Side(
        makespan_s=max(last for _, last, _ in every) - begin,
        idle_s=sum(max(0.0, after[0] - one[1]) for one, after in pairs),
        unprepared_s=sum(max(0.0, after[2] - one[1]) for one, after in pairs),
        trained_s=sum(last - first for first, last, _ in every),
        allocated_s=sum(jobs.values()),
        allocations=len(jobs),
    )


def all_over(lab: SlurmLab) -> bool:
    """Whether no job waits or runs, and Slurm has written down how long each has had its nodes."""
    known = lab.command("squeue", "--noheader", "--states=all", "--format=%A").split()
    return not lab.queue() and set(known) <= lab.completed_jobs().keys()


def array(lab: SlurmLab, rounds: list[int], folder: Path) -> Side:
    """One job for each training."""
    notes, before, begin = folder / "array", set(lab.completed_jobs()), time.time()
    script = f"{sys.executable} {training.__file__} {','.join(map(str, rounds))} {notes}"
    lab.command(
        "sbatch",
        f"--array=0-{len(rounds) - 1}",
        "--gres=gpu:1",
        "--cpus-per-task=1",
        f"--output={folder}/array-%a.log",
        f"--wrap={script}",
    )
    wait_until(lambda: all_over(lab), what="the array", timeout_s=_DEADLINE_S, every_s=0.5)
    _must_have(notes, len(rounds))
    return side_of(notes, begin, lab, before)


async def pool(lab: SlurmLab, sandbox: Sandbox, rounds: list[int], folder: Path) -> Side:
    """Runs of a pool."""
    notes, before = folder / "pool", set(lab.completed_jobs())
    shape = SlurmShape(name="one", time="60", gres="gpu:1", cpus=1, virtual_devices=1, maximum=NODES)
    block = GpuSlurm(shapes=[shape], conf=lab.conf, idle_seconds=5.0, poll_seconds=1.0)
    await block.save(POOL, overwrite=True)  # type: ignore[misc]
    env = settings(
        slurm=POOL,
        advertise=lab.gateway,
        channel_host="0.0.0.0",
        preload="xgboost,sklearn.datasets,sklearn.model_selection",
        page="false",
    )
    worker = sandbox.start_worker(POOL, env=env, wait=False)
    try:
        worker.wait_for_output("Serving pool")
        async with get_client() as client:
            deployment = await deploy(Path(training.__file__), "boost", POOL)
            begin, ids = time.time(), []
            for number, one in enumerate(rounds):
                run = await client.create_flow_run_from_deployment(
                    deployment,
                    parameters={"number": number, "rounds": one, "notes": str(notes)},
                    idempotency_key=f"training {number}",  # a busy server may be asked twice
                )
                ids.append(run.id)
            await completed(client, worker, ids, deadline_s=_DEADLINE_S, every_s=1.0)
        await asyncio.to_thread(wait_until, lambda: all_over(lab), what="the nodes to be given back")
    finally:
        worker.terminate(timeout_s=20.0)
    _must_have(notes, len(rounds))
    return side_of(notes, begin, lab, before)


def _must_have(notes: Path, count: int) -> None:
    ended = sorted(int(line.split()[0]) for line in notes.read_text().splitlines()) if notes.exists() else []
    if ended != list(range(count)):
        raise SandboxError(f"Each of {count} trainings was to run once; in {notes} there are {ended}")


def claims_of(ours: Side, theirs: Side) -> list[Claim]:
    """Ours against the array's."""
    return [
        at_most("makespan, of the array's", ours.makespan_s / theirs.makespan_s, 0.5),
        at_most("idle between trainings, of the array's", ours.idle_s / theirs.idle_s, 0.1),
        at_most("allocated node time, of the array's", ours.allocated_s / theirs.allocated_s, 1.0),
    ]


def same_results(folder: Path) -> bool:
    """Whether both sides have come to the same losses, to the last bit."""
    mine, others = (
        sorted(line.split()[-1] for line in (folder / name).read_text().splitlines()) for name in ("pool", "array")
    )
    return mine == others


def main() -> int:
    """See the module."""
    parser = command_line(__doc__, quick="eight trainings of 0.5 to 3 seconds: nothing is compared but the results")
    options = parser.parse_args()
    count, least, most = (8, 0.5, 3.0) if options.quick else (40, SHORTEST_S, LONGEST_S)
    rounds = rounds_of(count, least, most)
    with tempfile.TemporaryDirectory(prefix="prefect-gpu-bench-slurm-") as name, started(NODES, 1, _NUMBER) as lab:
        folder = Path(name)
        theirs = array(lab, rounds, folder)
        print(f"array: {theirs}", file=sys.stderr)
        with served({POOL: "gpu"}, host="0.0.0.0") as sandbox:
            ours = asyncio.run(pool(lab, sandbox, rounds, folder))
        print(f" pool: {ours}", file=sys.stderr)
        alike = same_results(folder)
    claims = [] if options.quick else claims_of(ours, theirs)
    claims.append(Claim("same results, to the last bit", float(alike), ">= 1", alike))
    details: dict[str, Any] = {
        "trainings": count,
        "cores": os.cpu_count(),
        "load_at_the_end": os.getloadavg()[0],
        "pool": asdict(ours),
        "array": asdict(theirs),
    }
    return report("slurm", claims, details, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
