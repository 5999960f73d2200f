"""One training of the benchmark: real steps of gradient descent, on a share of a core that the device's kind gives.

The share is kept as a quota of the kernel's would keep it: after each step the process waits until what it has used of
the processor, by its own CPU clock, is no more than its share of the time since it began to train. A step of a program
that reads a lot waits for its data, too, which is as fast for all kinds.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from prefect_gpu.training import training_run

SHARE = {"fast": 0.08, "slow": 0.02}
"""Parts of a core; all four devices together use a seventh of one, so that they hardly disturb each other."""

WORK_S = 0.012
"""CPU seconds of a step."""

READS_S = 0.15
"""Seconds for which a step of the program ``reader`` waits for its data; it computes a tenth of what others do."""


def main() -> None:
    """Train as the arguments say: program, steps, kinds of devices by their ids as JSON."""
    program, steps, kinds = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    [device] = json.loads(os.environ["PREFECT_GPU_DEVICES"])
    share = SHARE[kinds[device["id"]]]
    work_s = WORK_S if program == "compute" else WORK_S / 10
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(256, 32)), chance.normal(size=256)
    weights = np.zeros(32)
    with training_run(steps=steps) as run:
        run.ready()
        used, begin = time.process_time(), time.monotonic()
        for _ in run.steps():
            if program == "reader":
                time.sleep(READS_S)
            until = time.process_time() + work_s
            while time.process_time() < until:
                away = x @ weights - y
                weights -= 0.05 * (x.T @ away) / len(y)
            behind_s = (time.process_time() - used) / share - (time.monotonic() - begin)
            time.sleep(max(0.0, behind_s))
            run.report(loss=float(np.mean(away**2)))


if __name__ == "__main__":
    main()
