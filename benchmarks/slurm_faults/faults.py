"""What may go wrong on a Slurm cluster: how it begins, how long it lasts, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
from datetime import datetime

import psutil

from benchmarks.faults.soak import Fault
from benchmarks.slurm_faults.soak import SlurmSoak

_LASTS_S = 10.0
_ENDS_S = 180.0  # Slurm looks at time limits twice a minute, and a limit is of whole minutes


async def lose_controller(soak: SlurmSoak, chance: random.Random) -> None:
    """slurmctld is away. Meanwhile runs end, and others begin where they did."""
    await asyncio.to_thread(soak.lab.script, "controller-stop")
    await asyncio.sleep(soak.away_s)
    await asyncio.to_thread(soak.lab.script, "controller-start")


async def lose_node(soak: SlurmSoak, chance: random.Random) -> None:
    """A node loses its power: slurmd and all that it had started are gone at once; later it is back."""
    node = chance.choice(sorted(soak.jobs().values()))
    await asyncio.to_thread(soak.lab.script, "node-stop", node)
    await asyncio.sleep(_LASTS_S)
    await asyncio.to_thread(soak.lab.script, "node-start", node)
    _resume(soak, node)


async def take_node_down(soak: SlurmSoak, chance: random.Random) -> None:
    """An administrator sets a node DOWN, as Slurm does with one that does not answer."""
    node = chance.choice(sorted(soak.jobs().values()))
    _set(soak, node, "DOWN")
    await asyncio.sleep(_LASTS_S)
    _resume(soak, node)


async def drain_node(soak: SlurmSoak, chance: random.Random) -> None:
    """A node is drained: its allocation goes on, and ends here; there is no other one until the node is back."""
    job, node = chance.choice(sorted(soak.jobs().items()))
    _set(soak, node, "DRAIN")
    await asyncio.sleep(_LASTS_S / 2)
    soak.lab.command("scancel", job)
    await asyncio.sleep(_LASTS_S / 2)
    _resume(soak, node)


async def cancel(soak: SlurmSoak, chance: random.Random) -> None:
    """scancel."""
    soak.lab.command("scancel", chance.choice(sorted(soak.jobs())))


async def preempt(soak: SlurmSoak, chance: random.Random) -> None:
    """A job of a partition that comes first takes a node, and gives it back."""
    job = soak.lab.command(
        "sbatch",
        "--parsable",
        "--partition=urgent",
        "--exclusive",
        "--output=/dev/null",
        f"--gres=gpu:{soak.devices}",
        f"--wrap=sleep {_LASTS_S}",
    ).strip()
    for _ in range(60):
        await asyncio.sleep(1.0)
        if job not in soak.lab.queue():
            return
    soak.wrong(f"the urgent job {job} has not been given a node, or has not ended")


async def requeue(soak: SlurmSoak, chance: random.Random) -> None:
    """An administrator requeues an allocation, although it was submitted with --no-requeue."""
    job = chance.choice(sorted(soak.jobs()))
    soak.lab.command("scontrol", "update", f"JobId={job}", "Requeue=1")
    soak.lab.command("scontrol", "requeue", job)


async def reach_time_limit(soak: SlurmSoak, chance: random.Random) -> None:
    """An allocation's time limit is moved, so that its end is near, or has passed already; Slurm ends it."""
    job = chance.choice(sorted(soak.jobs()))
    begun = soak.lab.command("squeue", "--noheader", "--format=%S", f"--jobs={job}").strip()
    minutes = int((datetime.now() - datetime.fromisoformat(begun)).total_seconds() // 60) + chance.choice((0, 1))
    soak.lab.command("scontrol", "update", f"JobId={job}", f"TimeLimit={max(1, minutes)}")
    for _ in range(round(_ENDS_S)):
        await asyncio.sleep(1.0)
        if job not in soak.jobs():
            return
    soak.wrong(f"Slurm's job {job} has not ended, though its time limit was moved")


async def kill_agent(soak: SlurmSoak, chance: random.Random) -> None:
    """kill -9, as the kernel does when memory runs out."""
    with contextlib.suppress(psutil.NoSuchProcess):
        chance.choice(soak.agents()).kill()


async def die_while_asking(soak: SlurmSoak, chance: random.Random) -> None:
    """The worker dies between sbatch and its record: Slurm has the job, and the worker has not heard of its number."""
    await soak.die_at_next_sbatch()


def _set(soak: SlurmSoak, node: str, state: str) -> None:
    soak.lab.command("scontrol", "update", f"NodeName={node}", f"State={state}", "Reason=benchmark")


def _resume(soak: SlurmSoak, node: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # it needs none: slurmd has registered meanwhile
        _set(soak, node, "RESUME")


FAULTS = (
    Fault("slurmctld is away", lose_controller),
    Fault("a node loses its power", lose_node),
    Fault("a node is set DOWN", take_node_down, quick=True),
    Fault("a node is drained", drain_node),
    Fault("an allocation is cancelled", cancel, quick=True),
    Fault("an allocation is preempted by Slurm", preempt),
    Fault("an allocation is requeued", requeue, quick=True),
    Fault("an allocation's time limit is hit", reach_time_limit),
    Fault("an agent is killed", kill_agent, quick=True),
    Fault("the worker dies between sbatch and its record", die_while_asking, quick=True),
)
