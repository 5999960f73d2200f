"""Instances of a flow as real processes, started as the controller starts a gang."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.drivers.base import ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.gang import instance_environment, instance_folder, instance_id, launch_together
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.training.protocol import ENV_CHECKPOINTS

LOGGER = logging.getLogger("tests.flows")
REPOSITORY = Path(__file__).parents[2]
_INSTANCE = """
import json, os, sys
from pathlib import Path

module, function, told, change, parameters = sys.argv[1:]
if module != "data_parallel":
    import torch
    torch.set_num_threads(1)
flows = __import__(f"flows.{module}", fromlist=["flows"])
exec(change)
result = getattr(flows, function).fn(**json.loads(parameters))
Path(told, os.environ["RANK"]).write_text(json.dumps({"result": result, "role": os.environ["PREFECT_GPU_ROLE"]}))
"""
# What an instance may be changed to do. In its third epoch, when the first one has saved two, it dies.
BREAKS = """
import os
from prefect_gpu.training.run import TrainingRun
report = TrainingRun.report
def broken(run, *args, **kwargs):
    if run.next_step >= 3:
        os._exit(7)
    report(run, *args, **kwargs)
TrainingRun.report = broken
"""
SAYS_WHERE = """
from prefect_gpu.training.run import TrainingRun
steps = TrainingRun.steps
def begin(run):
    print("begins in", run.step, flush=True)
    return steps(run)
TrainingRun.steps = begin
"""


def gang(workers: int, servers: int = 0) -> Placement:
    """A placement of all instances on one node."""
    part = Placement("here", (), ())
    return Placement("here", (), (), others=(part,) * (workers + servers - 1), servers=servers)


async def run_together(
    folder: Path, placement: Placement, flow: tuple[str, str], changes: Sequence[str] = (), **parameters: Any
) -> tuple[ExitReport, dict[int, dict[str, Any]], list[str]]:
    """Run one instance for each part until all have ended.

    Args:
        folder: Where everything goes; checkpoints lie in it, so that another call carries on.
        flow: Names of the flow's module in `flows` and of its function.
        changes: Python that an instance runs before its flow, by rank; `flows` is the module.

    Returns:
        The gang's report; what each instance told that came to its end; all lines that were printed.
    """
    told, lines = folder / "told", list[str]()
    told.mkdir(exist_ok=True)
    launch = folder / f"launch-{time.monotonic_ns()}"
    driver = ProcessDriver(warm=False, echo=lambda label, line: lines.append(line), logger=LOGGER)
    await driver.start()
    meeting = driver.meeting_point("gang", launch)
    specs = []
    for rank, change in enumerate([*changes, *[""] * (len(placement.parts) - len(changes))]):
        own = {ENV_CHECKPOINTS: str(folder / "checkpoints"), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        argv = (sys.executable, "-c", _INSTANCE, *flow, str(told), change, json.dumps(parameters))
        env = {**os.environ, **own, **instance_environment(placement, rank, *meeting)}
        specs.append(
            LaunchSpec(instance_id("gang", rank), instance_folder(launch, rank), argv, env, cwd=folder, meets=True)
        )
    try:
        handle = await launch_together(driver, specs, LOGGER)
        report = await handle.wait()
    finally:
        await driver.close()
    return report, {int(file.name): json.loads(file.read_text()) for file in told.iterdir()}, lines
