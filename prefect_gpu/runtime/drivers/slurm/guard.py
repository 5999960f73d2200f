"""A process with nothing to do but to end what another one has started, when that ends."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

from prefect_gpu.runtime.drivers import supervisor

_PR_SET_CHILD_SUBREAPER = 36


def guarded(work: Callable[[], None]) -> int:
    """Do the work in a process of its own; when that ends, however it does, end whatever it has started.

    Not every Slurm finds processes again whose parents have ended (``ProctrackType``): a run must not outlive the agent
    that watches over it, since it is then started anew elsewhere.

    Returns:
        The exit code.
    """
    adopt_orphans()
    worker = os.fork()
    if worker == 0:
        work()
        return 0
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)  # Slurm's, for the agent
    status = 0
    while True:
        try:
            ended, ended_with = os.waitpid(-1, 0)
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status)
        if ended == worker:
            status, worker = ended_with, 0
        if not worker:
            for process in supervisor.descendants(os.getpid()):
                supervisor.send(process.pid, process.start_ticks, signal.SIGKILL)


def adopt_orphans() -> None:
    """Let what the children of this process leave behind become its own children."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
