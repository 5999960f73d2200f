"""What a supervisor wrote into the folder of a launch, as a worker reads it: whole, absent, or torn by a power loss."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ExitReport
from prefect_gpu.training.protocol import ENV_RUN_ID

Say = Callable[[str], object]
Pid = Annotated[int, Field(gt=0, lt=1 << 31)]

_LOOK_AGAIN_SECONDS = 0.02


@dataclass(frozen=True)
class Started:
    """``process.json``: a process and its supervisor, each known by its pid and its start time in clock ticks."""

    pid: Pid
    start_ticks: int
    supervisor_pid: Pid
    supervisor_start_ticks: int
    boot: str
    warm: bool = False


@dataclass(frozen=True)
class Ended:
    """``exit.json``; ``left`` are pids of processes that could not be ended."""

    returncode: Annotated[int, Field(ge=-(1 << 31), lt=1 << 32)]
    max_rss_bytes: int | None = None
    cpu_seconds: float | None = None
    ended_at: float | None = None
    left: tuple[int, ...] = ()
    oom_kills: int | None = None

    def report(self, tail: tuple[str, ...]) -> ExitReport:
        """The same with the last lines of its output."""
        seen = self.returncode, self.max_rss_bytes, self.cpu_seconds
        return ExitReport(*seen, tail, self.ended_at, oom_kills=self.oom_kills)


@dataclass(frozen=True)
class _Claimed:
    """``claim``: the supervisor that may start the launch, or that nobody may."""

    pid: Pid = 1
    start_ticks: int = -1
    boot: str = ""
    revoked: bool = False


def find_or_revoke(run_dir: Path, say: Say) -> Started | None:
    """The process of a launch; None if it has not begun, and then it never will.

    Args:
        say: Told of files that cannot be read.
    """
    while True:
        started, torn = _look(run_dir, say)
        if started is not None:
            return started
        if supervisor.claim(str(run_dir), {"revoked": True}):
            claimed: _Claimed | None = _Claimed(revoked=True)
        else:
            claimed = files.read(_Claimed, run_dir / supervisor.CLAIM, say)
        if torn or claimed is None:
            return _search(run_dir)
        if claimed.revoked:
            return None
        if not _alive(claimed):
            # Its run may only begin once process.json is there: look a last time, now that nobody writes it.
            return _look(run_dir, say)[0]
        time.sleep(_LOOK_AGAIN_SECONDS)


def marked(run_id: str) -> list[supervisor.Process]:
    """The living processes whose environment names the run."""
    mark = f"{ENV_RUN_ID}={run_id}".encode()
    return [process for process in supervisor.processes() if mark in environment(process.pid)]


def is_of_a_run(pid: int, run_id: str = "") -> bool:
    """Whether a living process is of a run, whoever launched it. One that we may not look at may be of one.

    Args:
        run_id: Of this run; empty: of any.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except PermissionError:
        return True
    except OSError:
        return False
    mark = f"{ENV_RUN_ID}={run_id}".encode()
    return mark in variables if run_id else any(one.startswith(mark) for one in variables)


def environment(pid: int) -> list[bytes]:
    """The variables that a process began with, as far as we may see them."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _look(run_dir: Path, say: Say) -> tuple[Started | None, bool]:
    """What ``process.json`` says, and whether it is there and says nothing."""
    path = run_dir / supervisor.PROCESS
    try:
        return files.build(Started, files.load(path)), False
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except files.UnreadableError as error:
        say(f"{path} cannot be read: {error}. Its process is searched for.")
        return None, True


def _search(run_dir: Path) -> Started | None:
    """The process of a launch whose files are of no use: supervisor and run write into its ``output.log``."""
    output = str(run_dir / supervisor.OUTPUT)
    leaders = sorted(
        (one for one in supervisor.processes() if one.session == one.pid and _writes_into(one.pid, output)),
        key=lambda one: one.start_ticks,
    )
    if not leaders:
        return None
    first = leaders[0]
    main = next((one for one in leaders if one.ppid == first.pid), first)
    return Started(main.pid, main.start_ticks, first.pid, first.start_ticks, supervisor.boot_id())


def _writes_into(pid: int, path: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/1") == path
    except OSError:
        return False


def _alive(claimed: _Claimed) -> bool:
    return claimed.boot == supervisor.boot_id() and supervisor.alive(claimed.pid, claimed.start_ticks)
