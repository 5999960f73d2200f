"""Slurm, as its commands let one talk to it: ``sbatch``, ``squeue``, ``scancel``, ``sinfo`` and ``scontrol``.

They are what each login node has. What a cluster's ``slurmrestd`` or its accounting would tell is not needed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_exponential

from prefect_gpu.runtime.drivers.base import LaunchError

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo", "scontrol")
PENDING, RUNNING = (
    frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD"}),
    frozenset({"RUNNING", "SUSPENDED"}),
)
"""States of a job that waits, and of one that has its nodes. In all others it is over, or about to be."""

_FIELDS = "%i|%T|%r|%S|%e|%N|%j|%k"
_COMMAND_S = 60.0  # Slurm's own commands wait for a controller for MessageTimeout, 10 s, some times over
_AWAY = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Connection timed out",
    "Unable to connect",
    "Zero Bytes were transmitted",
    "in standby mode",
    "Resource temporarily unavailable",
    "Protocol authentication error",  # munge restarts
)


class SlurmError(LaunchError):
    """Slurm refused something. The message is its own."""


class SlurmAway(SlurmError):
    """slurmctld does not answer now. What runs goes on."""

    away = True


@dataclass(frozen=True)
class SlurmJob:
    """A job, as ``squeue`` shows it.

    Attributes:
        id: Slurm's number.
        name: The name that it was submitted with.
        state: ``PENDING``, ``RUNNING``, ``TIMEOUT``, …
        reason: Why it waits: ``Resources``, ``Priority``, ``QOSMaxGRESPerUser``, …; ``None`` if there is none.
        ends_at: Unix seconds at which its time limit ends it, or at which it ended; None: it has none.
        starts_at: Unix seconds at which it was given its nodes, or may be; None: that is unknown.
        nodes: Names of its nodes, as Slurm writes lists; empty: it has none.
        comment: What its script says of its end, where its output is seen by nobody.
    """

    id: str
    name: str
    state: str
    reason: str = "None"
    ends_at: float | None = None
    starts_at: float | None = None
    nodes: str = ""
    comment: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet."""
        return self.state in PENDING

    @property
    def runs(self) -> bool:
        """Whether it has its nodes."""
        return self.state in RUNNING


class SlurmClient:
    """Runs Slurm's commands.

    Args:
        conf: Path of the cluster's ``slurm.conf``; None: as the environment and the machine have it.
        patience_s: For so long a command is tried again while slurmctld is away.
    """

    def __init__(self, conf: Path | None = None, patience_s: float = 15.0) -> None:
        # Times as Unix seconds: whatever zone the machine is in, and however its clock changes with the season.
        self._env = {**os.environ, "SLURM_TIME_FORMAT": "%s"} | ({"SLURM_CONF": str(conf)} if conf else {})
        self._patience_s = patience_s

    async def cluster_name(self) -> str:
        """What the cluster calls itself.

        Raises:
            SlurmError: The commands are missing, or Slurm does not answer.
        """
        told = await self._run("scontrol", "show", "config")
        names = (line.partition("=")[2].strip() for line in told.splitlines() if line.startswith("ClusterName"))
        return next(names, "") or "cluster"

    async def partitions(self) -> dict[str, str]:
        """The partitions and their state, ``up`` or another one."""
        told = await self._run("sinfo", "--noheader", "--format=%R|%a")
        return dict(line.split("|", 1) for line in told.splitlines() if "|" in line)

    async def submit(self, script: Path, options: Sequence[str]) -> str:
        """Submit a job. It is tried once: if the answer is lost, the job is found by its name.

        Returns:
            Its number.

        Raises:
            SlurmError: It was refused.
        """
        told = await self._once("sbatch", "--parsable", *options, str(script))
        return told.strip().partition(";")[0]

    async def jobs(self, prefix: str) -> list[SlurmJob]:
        """This user's jobs whose name begins so, those included that have ended a short while ago."""
        told = await self._run("squeue", "--me", "--noheader", "--states=all", f"--format={_FIELDS}")
        found = (_parse(line) for line in told.splitlines() if line.count("|") >= _FIELDS.count("|"))
        return [job for job in found if job.name.startswith(prefix)]

    async def hostnames(self, nodes: str) -> list[str]:
        """The nodes of a list of Slurm's, ``gpu[3-4]``, in its order."""
        if "[" in nodes or "," in nodes:
            return (await self._run("scontrol", "show", "hostnames", nodes)).split()
        return [nodes] if nodes else []

    async def cancel(self, ids: Iterable[str]) -> None:
        """End jobs. One that is over already is no error."""
        if ids := list(ids):
            await self._run("scancel", "--quiet", *ids)

    async def _run(self, *command: str) -> str:
        """Run a command that may be repeated, again and again while slurmctld is away."""
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(SlurmAway),
            wait=wait_exponential(0.5, max=5),
            stop=stop_after_delay(self._patience_s),
            reraise=True,
        ):
            with attempt:
                return await self._once(*command)
        raise AssertionError("unreachable")

    async def _once(self, program: str, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._env,
            )
        except FileNotFoundError:
            raise SlurmError(
                f"The command {program} is not on this machine: start the worker on a login node of the cluster, or "
                "install Slurm's client (Debian: slurm-client) and its slurm.conf."
            ) from None
        try:
            out, complaint = await asyncio.wait_for(process.communicate(), _COMMAND_S)
        except asyncio.TimeoutError:
            raise SlurmAway(f"{program} has not answered for {_COMMAND_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = complaint.decode(errors="replace").strip()
            kind = SlurmAway if any(words in said for words in _AWAY) else SlurmError
            last = said.splitlines()[-1] if said else f"{program}: exit code {process.returncode}"
            raise kind(last.replace(": error: ", ": ", 1))
        return out.decode(errors="replace")


def missing_commands() -> list[str]:
    """Which of Slurm's commands this machine lacks."""
    return [name for name in COMMANDS if shutil.which(name) is None]


def _parse(line: str) -> SlurmJob:
    number, state, reason, start, end, nodes, name, comment = line.strip().split("|", 7)
    comment = "" if comment == "(null)" else comment
    return SlurmJob(number, name, state, reason, _seconds(end), _seconds(start), nodes, comment)


def _seconds(told: str) -> float | None:
    return float(told) if told.isdigit() else None
