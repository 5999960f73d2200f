"""Slurm, as its commands let one talk to it: ``sbatch``, ``squeue``, ``scancel``, ``sinfo`` and ``scontrol``.

They are what each login node has. ``sacct`` is asked, too, where it is there and the cluster keeps accounts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from prefect_gpu.runtime.drivers.slurm import accounting
from prefect_gpu.runtime.drivers.slurm.cluster import (
    JobEnd,
    Partition,
    SlurmAway,
    SlurmError,
    SlurmJob,
    as_allocations,
    error_of,
    patiently,
)

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
_FIELDS = "%i|%T|%r|%S|%e|%N|%j|%k"
COMMAND_S = 60.0  # Slurm's own commands wait for a controller for MessageTimeout, 10 s, some times over
_ACCOUNTING_S = 10.0  # of what nobody depends on


class SlurmClient:
    """Runs Slurm's commands. It is a :class:`.Cluster`.

    Args:
        conf: Path of the cluster's ``slurm.conf``; None: as the environment and the machine have it.
        patience_s: For so long a command is tried again while slurmctld is away.
    """

    def __init__(self, conf: Path | None = None, patience_s: float = 15.0) -> None:
        # Times as Unix seconds: whatever zone the machine is in, and however its clock changes with the season.
        self._env = environment(conf) | {"SLURM_TIME_FORMAT": "%s"}
        self._patience_s = patience_s
        self._accounting = accounting.Accounting(self._ends)

    async def cluster_name(self) -> str:
        told = await self._run("scontrol", "show", "config")
        names = (line.partition("=")[2].strip() for line in told.splitlines() if line.startswith("ClusterName"))
        return next(names, "") or "cluster"

    async def partitions(self) -> dict[str, Partition]:
        told = await self._run("sinfo", "--noheader", "--format=%P|%a|%l")
        rows = (line.strip().rsplit("|", 2) for line in told.splitlines() if line.count("|") >= 2)
        return {name.rstrip("*"): Partition(state, time, name.endswith("*")) for name, state, time in rows}

    async def refusal(self, options: Sequence[str]) -> str:
        try:
            await self._once("sbatch", "--test-only", *options, "--wrap=true")
        except SlurmAway:
            raise
        except SlurmError as error:
            return str(error).removeprefix("allocation failure: ")
        return ""

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        told = await self._once("sbatch", "--parsable", *options, str(script))
        return told.strip().partition(";")[0]

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        told = await self._run("squeue", "--me", "--noheader", "--states=all", f"--format={_FIELDS}")
        found = (_parse(line) for line in told.splitlines() if line.count("|") >= _FIELDS.count("|"))
        return as_allocations(job for job in found if job.name.startswith(prefix))

    async def cancel(self, ids: Iterable[str]) -> None:
        if ids := list(ids):
            await self._run("scancel", "--quiet", *ids)

    async def ends(self, ids: Iterable[str]) -> Mapping[str, JobEnd]:
        return await self._accounting.ends(ids)

    async def drained(self) -> Mapping[str, str]:
        told = await self._run("sinfo", "--noheader", "--Node", "--states=drain", "--format=%N|%E")
        return dict(line.split("|", 1) for line in told.splitlines() if "|" in line)

    async def _ends(self, ids: list[str]) -> Mapping[str, JobEnd]:
        numbers = f"--jobs={','.join(ids)}"
        return accounting.ends_of(await self._once("sacct", *accounting.OPTIONS, numbers, patience_s=_ACCOUNTING_S))

    async def _run(self, *command: str) -> str:
        """Run a command that may be repeated, again and again while slurmctld is away."""
        return await patiently(lambda: self._once(*command), self._patience_s)

    async def _once(self, program: str, *arguments: str, patience_s: float = COMMAND_S) -> str:
        return await called(program, *arguments, env=self._env, patience_s=patience_s)


async def called(program: str, *arguments: str, env: Mapping[str, str], patience_s: float = COMMAND_S) -> str:
    """Call one of Slurm's commands. Returns what it prints.

    Args:
        patience_s: It is ended after so many seconds.

    Raises:
        SlurmError: It complains, or is not here.
        SlurmAway: It finds no slurmctld, or does not answer.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
        )
    except FileNotFoundError:
        raise SlurmError(
            f"The command {program} is not on this machine: start the worker on a login node of the cluster, or "
            "install Slurm's client (Debian: slurm-client) and its slurm.conf."
        ) from None
    try:
        out, complaint = await asyncio.wait_for(process.communicate(), patience_s)
    except asyncio.TimeoutError:
        raise SlurmAway(f"{program} has not answered for {patience_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = complaint.decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else f"{program}: exit code {process.returncode}"
        raise error_of(said, last.replace(": error: ", ": ", 1))
    return out.decode(errors="replace")


def environment(conf: Path | None) -> dict[str, str]:
    """What Slurm's commands are told: the environment, and where the cluster's ``slurm.conf`` is, if that is said."""
    return {**os.environ} | ({"SLURM_CONF": str(conf)} if conf else {})


def missing_commands() -> list[str]:
    """Which of Slurm's commands this machine lacks."""
    return [name for name in COMMANDS if shutil.which(name) is None]


def _parse(line: str) -> SlurmJob:
    number, state, reason, start, end, nodes, name, comment = line.strip().split("|", 7)
    comment = "" if comment == "(null)" else comment
    return SlurmJob(number, name, state, reason, _seconds(end), _seconds(start), nodes, comment)


def _seconds(told: str) -> float | None:
    return float(told) if told.isdigit() else None
