"""A run that hardly does anything, and notes where and when it did."""

from __future__ import annotations

import os
import socket
import time

from prefect import flow

from prefect_gpu import training_run


@flow
def tiny(notes: str, seconds: float) -> None:
    """Sleep in one step, and add a line to the notes: node, when its process began, and when it ended."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    began = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    with training_run(steps=1) as run:
        for _ in run.steps():
            time.sleep(seconds)
            run.report()
    with open(notes, "a") as file:
        file.write(f"{socket.gethostname()} {began} {time.time()}\n")
