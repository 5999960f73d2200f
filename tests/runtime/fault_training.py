"""A short training that notes when it trains, and fails where it is told to. Run by ``test_fault_processes``."""

from __future__ import annotations

import functools
import json
import os
import time

from prefect_gpu.training import run, training_run
from prefect_gpu.training.channel import link

PATIENCE_S = 0.6  # at the gate, without a worker; one minute in earnest


def main() -> None:
    run.wait_at_gate = functools.partial(link.wait_at_gate, patience=PATIENCE_S)
    told = json.loads(os.environ["FAULTS"])
    notes = os.open(told["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, attempt: int = 0) -> None:
        words = [os.environ["PREFECT_GPU_RUN_ID"], os.getpid(), what, attempt, time.monotonic()]
        os.write(notes, (json.dumps(words) + "\n").encode())

    note("started")
    for attempt in range(2):
        fails = told["fails"] if attempt == 0 else ""
        try:
            with training_run(steps=told["steps"]) as training:
                time.sleep(told["prepares_s"])
                if fails == "preparing":
                    raise ValueError(fails)
                training.ready()
                for step in training.steps():
                    note("trains", attempt)
                    time.sleep(0.01)
                    training.report(loss=1.0)
                    if fails == "training" and step > 2:
                        raise ValueError(fails)
                note("trains", attempt)
            with training.saving():
                time.sleep(0.03)
                if fails == "saving":
                    raise ValueError(fails)
            break
        except ValueError:
            if told["dies"]:
                os._exit(3)
    note("done")


if __name__ == "__main__":
    main()
