"""A training whose steps take as long as it is told for the devices it has. Run by ``test_elastic_runs``.

It ends when it has done enough steps in as many launches as it is told, however long it is left in one place.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from prefect_gpu.training import training_run


def main() -> None:
    told = json.loads(os.environ["ELASTIC"])
    devices = len(json.loads(os.environ["PREFECT_GPU_DEVICES"]))
    notes = os.open(told["notes"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with training_run() as run:
        state = run.restore(lambda path: json.loads(path.read_text()))
        run.step, launches = (state["step"], state["launches"] + 1) if state else (0, 1)
        run.ready()

        def save(path: Path) -> None:
            path.write_text(json.dumps({"step": run.step, "launches": launches}))

        here = 0
        while here < told["enough"] or launches < told["launches"]:
            time.sleep(told["step_s"][devices - 1])
            here += 1
            os.write(notes, (json.dumps(devices) + "\n").encode())
            run.report(loss=1.0, checkpoint=save)


if __name__ == "__main__":
    main()
