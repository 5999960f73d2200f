"""A deterministic training that notes its steps, and carries on from its checkpoint. Run by ``test_eviction``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect_gpu.training import training_run


def main() -> None:
    told = json.loads(os.environ["LEAVING"])
    notes = os.open(told["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with training_run(steps=told["steps"]) as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        weight = state["weight"] if state else 1.0
        run.step = state["step"] if state else 0
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"step": run.step, "weight": weight}))

        for step in run.steps():
            weight -= 0.1 * weight * (1 + step % 3)  # the result depends on the order and number of the steps
            device = json.loads(os.environ["PREFECT_GPU_DEVICES"])[0]["id"]
            os.write(notes, (json.dumps([step, device, os.getpid()]) + "\n").encode())
            time.sleep(0.02)
            run.report(loss=weight, checkpoint=save if told["saves"] else None)
    with run.saving():
        Path(told["result"]).write_text(repr(weight))


if __name__ == "__main__":
    main()
