"""The programs that a driver lists. A stand-in for NVIDIA's library gives the answers: no GPU is tested here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from prefect_gpu.training.protocol import ENV_RUN_ID
from tests.nvml_stub import NvmlStub
from tests.runtime.telemetry.test_nvml import DRIVER, gpu, mig

LOOK = """
import dataclasses, json, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
state = open(os.environ["NVML_STUB_STATE"]).read()
open(os.environ["NVML_STUB_STATE"], "w").write(state.replace("CHILD", str(child.pid)))
from prefect_gpu.runtime.telemetry.programs import programs_of_each
found = programs_of_each({devices!r})
child.kill()
print(json.dumps({{device: [dataclasses.asdict(one) for one in programs] for device, programs in found.items()}}))
"""


def test_the_drivers_list_is_read_and_runs_are_known_by_their_environment(nvml: NvmlStub) -> None:
    sleeps = [sys.executable, "-c", "input()"]
    run = subprocess.Popen(sleeps, stdin=subprocess.PIPE, env={**os.environ, ENV_RUN_ID: "one"})
    gone = subprocess.Popen(["true"])
    gone.wait()
    nvml.says(
        DRIVER,
        gpu(0, programs=f"{run.pid}:4096,{os.getpid()}:-,{gone.pid}:7"),
        gpu(1, mig=1),
        mig(0, programs=f"{os.getpid()}:5"),
        gpu(2, programs_error=3),
        gpu(3),
        gpu(4, programs="CHILD:8"),
    )
    try:
        found = nvml.run(LOOK.format(devices=["GPU-0000", "MIG-0000", "GPU-0002", "GPU-0003", "GPU-0004", "GPU-9999"]))
    finally:
        run.kill()
        run.wait()
    assert found.keys() == {"GPU-0000", "MIG-0000", "GPU-0003", "GPU-0004"} and found["GPU-0003"] == []
    ours, mine, over = found["GPU-0000"]
    assert (ours["pid"], ours["memory_bytes"], ours["run"], ours["certain"]) == (run.pid, 4096, "one", True)
    assert mine["memory_bytes"] is None and mine["name"] == Path("/proc/self/comm").read_text().strip()
    assert mine["certain"] and not mine["run"] and mine["user"]
    assert (over["name"], over["user"], over["certain"]) == ("", "", False)
    assert [one["memory_bytes"] for one in found["MIG-0000"]] == [5]
    assert [one["own"] for one in (ours, mine, over, *found["GPU-0004"])] == [False, False, False, True]
