"""The allocations of a pool: asked for, found again, and given back.

What is known of an allocation is written down before Slurm is asked for it, under a name that its job has, too. So
whatever happens to the worker in between, the next one finds the job by its name; a job of the pool's that nobody has
written down is cancelled, and an entry that no job has is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.cluster import (
    OUT_OF_MEMORY,
    Cluster,
    JobEnd,
    SlurmAway,
    SlurmError,
    SlurmJob,
    has_ended,
)
from prefect_gpu.runtime.drivers.slurm.shapes import Shape

UNSEEN_S = 120.0
"""A job that was submitted, and that Slurm has not shown for so long, is none: the answer had been lost."""
_LOG_KEPT_S = 3600.0
_REFUSED_S = 30.0  # from a refusal to the next try
_LONGEST_REFUSED_S = 600.0  # if allocations fail at once, again and again
_FAILED = ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL")  # other ends say nothing of our script
_SHOWN = 300  # characters of a log
_MEMORY_RAN_OUT = ("exceeded memory limit", "Exceeded job memory limit", "oom-kill event", "oom_kill event")
_REMEMBERED = 1000  # ends of allocations


@dataclass(frozen=True)
class Over:
    """How an allocation ended.

    Attributes:
        why: In words.
        out_of_memory: Whether what ran in it has taken more main memory than the allocation had.
    """

    why: str
    out_of_memory: bool = False


PORTS = range(20_000, 32_000)
"""Ports of nodes that Linux gives to nobody by itself."""


@dataclass
class Pilot:
    """An allocation that is not over.

    Attributes:
        name: Its own.
        record: What is written down of it.
        job: What Slurm showed of it last; None: nothing yet.
        asked_at: When it was submitted, monotonic seconds; of one that was found, when that was.
        given_back: Whether it is to be cancelled: it takes no work any more.
        cancelled: Whether Slurm has been told so.
        begun: Whether one of its agents has connected, or may have to an earlier worker.
    """

    name: str
    record: words.Record
    job: SlurmJob | None = None
    asked_at: float = dataclasses.field(default_factory=time.monotonic)
    given_back: bool = False
    cancelled: bool = False
    begun: bool = False


class Pilots:
    """See the module.

    Args:
        client: Slurm.
        folder: Where they are written down; the nodes see it at the same path.
        prefix: What the names of all of the pool's jobs begin with, and of no other pool's.
        ports: How many ports of its nodes an allocation has, for a tunnel.
    """

    def __init__(
        self, client: Cluster, folder: Path, prefix: str, logger: Logger | LoggerAdapter[Any], ports: int = 0
    ) -> None:
        self._client, self._folder, self._prefix, self._logger = client, folder, prefix, logger
        self._ports = ports
        self.told: words.Settings | None = None  # what agents are sent that do not see the folder; None: they do
        self.all: dict[str, Pilot] = {}
        self._ended: dict[str, Over] = {}  # by Slurm's number, of the last ones
        self._over: list[tuple[Pilot, Over]] = []  # found by a look that failed later on, and still to be told
        self._refused_until = -math.inf
        self._failures = 0  # in a row
        self.trouble = ""  # why Slurm refused the last job, or how it failed at once; empty: it did not

    def load(self) -> None:
        """Find what an earlier worker has written down."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._folder.glob("*.json"):
            if path.name == words.AGENTS or path.name.startswith("."):
                continue
            record = files.read(words.Record, path, self._logger.error)
            if record is None:
                path.unlink(missing_ok=True)  # its job is cancelled, as nobody knows its token
            else:
                self.all[path.stem] = Pilot(path.stem, record, begun=True)

    async def submit(self, shape: Shape) -> Pilot | None:
        """Ask Slurm for one more allocation; None if it refuses, which :attr:`trouble` tells, or has just refused."""
        if time.monotonic() < self._refused_until:
            return None
        name = secrets.token_hex(4)
        record = words.Record(
            token=secrets.token_urlsafe(32),
            shape=shape.name,
            parts=tuple(
                words.Nodes(part.nodes, part.virtual_devices, part.virtual_device_memory_bytes) for part in shape.parts
            ),
            ports=tuple(random.sample(PORTS, self._ports)),
            shared=self.told is None,
            asked=shape.asked,
        )
        pilot = self.all[name] = Pilot(name, record)
        self._write(pilot)
        script = self._folder / f"{name}.sh"
        log = self._folder / f"{name}.log"
        if self.told is None:
            words.write_secret_bytes(script, shape.script(self._folder, name).encode())
        else:
            told = {"record": dataclasses.asdict(record), "settings": dataclasses.asdict(self.told)}
            words.write_secret_bytes(script, shape.sending_script(name, told).encode())
            log = Path("/dev/null")  # a path of the node's
        options = shape.options(f"{self._prefix}{name}", log)
        try:
            number = await self._client.submit(script, options)
        except SlurmAway as error:  # it may have been submitted all the same: its name will tell
            self._logger.warning("Slurm may not have heard of an allocation that it was asked for: %s.", error)
            return pilot
        except SlurmError as error:
            self._say(f"Slurm refuses an allocation of the shape {shape.name!r}: {error}")
            self._forget(pilot)
            self._refused_until = time.monotonic() + _REFUSED_S
            return None
        if not self._failures:
            self.trouble = ""
        pilot.record = dataclasses.replace(record, job=number)
        self._write(pilot)
        self._logger.info("Asked Slurm for an allocation of the shape %r: job %s", shape.name, number)
        return pilot

    async def look(self) -> list[tuple[Pilot, Over]]:
        """Bring everything up to date with Slurm's queue.

        Returns:
            Allocations that are over, each with why.

        Raises:
            SlurmError: Slurm cannot be asked. What there was goes on; what was found to be over is told the next time.
        """
        jobs = {job.name.removeprefix(self._prefix): job for job in await self._client.jobs(self._prefix)}
        ends = await self._client.ends(self._of_interest(jobs))
        over = self._over
        strangers = [job for name, job in jobs.items() if name not in self.all and (job.waits or job.runs)]
        for pilot in list(self.all.values()):
            job = jobs.get(pilot.name)
            end = ends.get(pilot.record.job)
            seen = pilot.job is not None or pilot.record.started_at is not None
            if job is None and not seen and end is None and time.monotonic() - pilot.asked_at < UNSEEN_S:
                continue
            if job is not None and _begun_anew(job, pilot.record):
                strangers.append(job)  # what ran in it is gone, and its agents are others
                requeued = Over(f"Its allocation, Slurm's job {job.id}, has been requeued.")
                over.append((pilot, self._remember(job.id, requeued)))
                self._forget(pilot)
                continue
            if job is not None and (job.waits or job.runs or job.state == "COMPLETING"):
                pilot.job = job
                started_at = job.starts_at if job.runs else pilot.record.started_at
                record = dataclasses.replace(pilot.record, job=job.id, started_at=started_at)
                if record != pilot.record:
                    pilot.record = record
                    self._write(pilot)
                continue
            ended = how_it_ended(pilot.record, job, end, await asyncio.to_thread(self._log_of, pilot))
            over.append((pilot, self._remember(pilot.record.job, ended)))
            if job is not None and job.state in _FAILED and not (pilot.begun or pilot.given_back):
                self._failed(pilot, job)
            self._forget(pilot)
        if strangers:
            numbers = [job.id for job in strangers]
            self._logger.warning("Slurm's jobs %s are this pool's and nobody's: cancelled.", ", ".join(numbers))
            await self._client.cancel(numbers)
        self._over = []
        return over

    def _of_interest(self, jobs: Mapping[str, SlurmJob]) -> list[str]:
        """Numbers of the allocations that are over, or that Slurm's queue does not show, and of which more is asked."""
        pilots = (pilot for pilot in self.all.values() if pilot.record.job and not pilot.given_back)
        return [one.record.job for one in pilots if (job := jobs.get(one.name)) is None or has_ended(job.state)]

    async def end_of(self, number: str) -> Over | None:
        """How an allocation ended that is none of :attr:`all` any more; None: nobody knows.

        Args:
            number: Slurm's, of its job.
        """
        if number not in self._ended and (end := (await self._client.ends([number])).get(number)) is not None:
            self._remember(number, how_it_ended(words.Record("", "", job=number), None, end))
        return self._ended.get(number)

    def _remember(self, number: str, over: Over) -> Over:
        self._ended[number] = over
        while len(self._ended) > _REMEMBERED:
            self._ended.pop(next(iter(self._ended)))
        return over

    def began(self, pilot: Pilot) -> None:
        """An agent of the allocation has connected: whatever was wrong with those before is so no more."""
        pilot.begun = True
        if self._failures:
            self._failures, self.trouble = 0, ""

    def _failed(self, pilot: Pilot, job: SlurmJob) -> None:
        """Its script, or its agent, does not work there. Nor would the next one: Slurm is spared it for a while."""
        if pilot.record.shared:
            lines = [line.strip() for line in self._log_of(pilot)]
            told = [line for line in lines if line and not line.startswith("srun: ")]  # which only counts exit codes
            last, unsaid = told[-1] if told else "", ", and the node does not see this folder, or nothing was said"
            where = f"; {self._folder / pilot.name}.log"
        else:
            last, unsaid, where = job.comment, ", and nothing was said", ""
        said = f": {last[-_SHOWN:]}" if last else unsaid
        self._spare_slurm()
        self._say(
            f"Slurm's job {job.id}, an allocation of the shape {pilot.record.shape!r}, has ended before its agent has "
            f"connected ({job.state}{where}){said}"
        )

    def useless(self, pilot: Pilot, why: str) -> None:
        """None of its nodes has what it was asked for. It goes back, and Slurm is spared the next one for a while."""
        pilot.given_back = True
        self._spare_slurm()
        self._say(f"{why}. It is given back, and Slurm is asked for another one later")

    def _spare_slurm(self) -> None:
        self._failures += 1
        self._refused_until = time.monotonic() + min(_REFUSED_S * 2 ** (self._failures - 1), _LONGEST_REFUSED_S)

    def _log_of(self, pilot: Pilot) -> list[str]:
        with contextlib.suppress(OSError):
            return (self._folder / f"{pilot.name}.log").read_text(errors="replace").splitlines()
        return []

    def dedicate(self, pilot: Pilot, run: str) -> bool:
        """Let an allocation be for this run alone; False: it is for another one."""
        if pilot.record.run in ("", run):
            if not pilot.record.run:
                pilot.record = dataclasses.replace(pilot.record, run=run)
                self._write(pilot)
            return True
        return False

    async def give_back(self) -> None:
        """Cancel the allocations that are to be given back; each once, and as soon as its number is known.

        Raises:
            SlurmError: Slurm cannot be told. It is to be tried again.
        """
        chosen = [one for one in self.all.values() if one.given_back and not one.cancelled and one.record.job]
        if not chosen:
            return
        numbers = [pilot.record.job for pilot in chosen]
        await self._client.cancel(numbers)
        self._logger.info("Nobody needs Slurm's jobs %s any more: they are given back.", ", ".join(numbers))
        for pilot in chosen:
            pilot.cancelled = True

    def _write(self, pilot: Pilot) -> None:
        words.write_secret(self._folder / f"{pilot.name}.json", dataclasses.asdict(pilot.record))

    def _forget(self, pilot: Pilot) -> None:
        self.all.pop(pilot.name, None)
        for ending in ("json", "sh"):
            (self._folder / f"{pilot.name}.{ending}").unlink(missing_ok=True)
        for log in self._folder.glob("*.log"):
            if log.stem not in self.all and time.time() - log.stat().st_mtime > _LOG_KEPT_S:
                log.unlink(missing_ok=True)

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self._logger.error("%s", trouble)
        self.trouble = trouble


def how_it_ended(record: words.Record, job: SlurmJob | None, end: JobEnd | None, log: Sequence[str] = ()) -> Over:
    """How an allocation ended, of which Slurm's queue shows this, its accounting that, and its output more."""
    state = end.state if end is not None else job.state if job is not None else "not in Slurm's queue any more"
    # Where it is not the kernel that ends what takes too much, the job has only failed, and its output says why.
    told = state == "FAILED" and any(sign in line for line in log for sign in _MEMORY_RAN_OUT)
    number, of = record.job or "?", f" of the shape {record.shape!r}" if record.shape else ""
    if told or (job is not None and job.state == OUT_OF_MEMORY) or (end is not None and end.out_of_memory):
        why = (
            f"Its allocation, Slurm's job {number}{of}, ran out of main memory (OUT_OF_MEMORY): what ran in it took "
            "more than Slurm had given it. Give the shape more `memory` in the block gpu-slurm, or load less at once."
        )
        return Over(why, out_of_memory=True)
    return Over(f"Its allocation, Slurm's job {number}, has ended: {state}.")


def _begun_anew(job: SlurmJob, record: words.Record) -> bool:
    """Whether an administrator, or the failure of its node, has put a job that had its nodes into the queue again."""
    if record.started_at is None:
        return False
    return job.waits or (job.runs and job.starts_at != record.started_at)


def prefix_of(pool: str, pool_id: str) -> str:
    """What the names of a pool's jobs begin with. Two pools of one name, of two Prefect servers, are two.

    Example:
        >>> prefix_of("My GPUs", "0d3f81aa-77b1-4a43-9a3f-d17a1b8a2c8e")
        'prefect-gpu-My-GPUs-0d3f81aa-'
    """
    return f"prefect-gpu-{re.sub('[^A-Za-z0-9]+', '-', pool)[:24]}-{pool_id.partition('-')[0]}-"
