"""The training of the benchmark of faults: it does little, saves often, and says what it does to who keeps notes."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow(retries=100, retry_delay_seconds=0)
def fit(name: str, notes: str, steps: int, step_s: float) -> None:
    """Each step changes a number; what comes out depends on their order and count.

    Args:
        notes: Where to say that a try has begun, and with which result it ended: over the network, as to a tracker of
            experiments, so that a node that is cut off can say nothing.
    """
    attempt = uuid.uuid4().hex
    say(notes, name, attempt, "started")
    with training_run(steps=steps, checkpoint_every=20.0) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"weight": weight, "step": run.step}))

        for step in run.steps():
            weight = result_after(weight, step)
            time.sleep(step_s)
            run.report(loss=weight, checkpoint=save)
    with run.saving():
        say(notes, name, attempt, repr(weight))


def result_after(weight: float, step: int) -> float:
    """One step."""
    return weight - 0.1 * weight * (1 + step % 3)


def say(notes: str, name: str, attempt: str, what: str) -> None:
    """Say it until it was heard; the other side knows by the attempt what it has heard before."""
    note = json.dumps({"name": name, "attempt": attempt, "what": what}).encode()
    while True:
        try:
            with urllib.request.urlopen(notes, data=note, timeout=5.0):
                return
        except OSError:
            time.sleep(1.0)
