"""A training for the tests of blocks."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect import flow

from prefect_gpu import training_run


@flow
def keeps(seen: str = "", fail: bool = False, steps: int = 3) -> int:
    """Saves a checkpoint in each step; writes down, or prints, what it sees of its place; may fail at the end."""
    facts = {name: os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "PREFECT_GPU_CPUS")}
    with training_run(steps=steps, checkpoint_every=0.001) as run:
        first = run.restore(lambda path: int(path.read_text())) or 0
        for step in run.steps():
            time.sleep(0.01)  # a checkpoint is due after a thousandth of a second
            run.report(loss=1.0, checkpoint=lambda path, step=step: path.write_text(str(step + 1)))  # type: ignore[misc]
    text = json.dumps({**facts, "first": first})
    Path(seen).write_text(text) if seen else print(f"seen {text}", flush=True)
    if fail:
        raise RuntimeError("on purpose")
    return first
