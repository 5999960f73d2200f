"""Devices that fall ill while runs train on them, on a real server with real processes.

The GPUs are those of a stand-in for NVIDIA's library (tests/nvml_stub): what is tested is what the pool does about what
the driver says, and no GPU.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.pool import LivePool, eventually
from tests.live.test_preemption import STEPS, result_of, undisturbed
from tests.nvml_stub import NvmlStub, build
from tests.runtime.telemetry.test_nvml import DRIVER, gpu

pytestmark = pytest.mark.full


@pytest.fixture
def driver(tmp_path: Path) -> NvmlStub:
    (tmp_path / "nvml").mkdir()
    return NvmlStub(build(tmp_path / "nvml"), tmp_path / "nvml-state")


async def test_runs_leave_a_gpu_that_falls_off_the_bus(
    pool: LivePool, tmp_path: Path, driver: NvmlStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool.sandbox, "_popen", subprocess.Popen)  # a forged worker would not load the stand-in
    lines = [DRIVER, *(gpu(number, total=8 << 30, reserved=0, used=0) for number in range(2))]
    driver.says(*lines)
    env = driver.environment()
    told = {name: env[name] for name in ("LD_LIBRARY_PATH", "NVML_STUB_STATE")} | {"CUDA_VISIBLE_DEVICES": "0,1"}
    pool.start_worker(others=told, learn="false")
    traces, hurry = [tmp_path / f"trace-{who}" for who in "ab"], tmp_path / "hurry"
    runs = [
        await pool.submit(
            "carries_on", job_variables={"preemptible": True, "owner": who}, trace=str(trace), steps=STEPS, step_s=0.12,
            hurry=str(hurry),
        )
        for who, trace in zip(("ann", "bob"), traces, strict=True)
    ]  # fmt: skip

    async def command(*arguments: str) -> str:
        state = {"PREFECT_INTEGRATIONS_GPU_STATE_DIR": str(pool.state_dir), **told}
        return await asyncio.to_thread(pool.sandbox.run, [sys.executable, "-m", "prefect_gpu", *arguments], env=state)

    async def training() -> dict[str, str]:
        """The device of each run that trains."""
        [shown] = json.loads(await pool.command("status", "--json"))
        return {one["id"]: one["devices"][0] for one in shown["runs"] if one["phase"] == "training"}

    async def both() -> dict[str, str]:
        found = await training()
        return found if len(found) == 2 else {}

    at = await eventually(both, "both trainings")
    sick = at[str(runs[0])]
    number = int(sick[-1])
    # A program's own fault is no reason; that the GPU fell off the bus is.
    driver.says(*lines, f"event|gpu={1 - number}|xid=13", f"event|gpu={number}|xid=79")

    async def cordoned() -> str:
        [shown] = json.loads(await pool.command("status", "--json"))
        return {one["id"]: one["cordoned"] for one in shown["devices"]}[sick] or ""

    assert "fallen off the bus (Xid 79)" in await eventually(cordoned, "the sick device out of service")
    assert f"{sick} (it has fallen off the bus (Xid 79))" in " ".join((await command("devices")).split())
    hurry.touch()
    for run, trace in zip(runs, traces, strict=True):
        assert (await pool.until(run)).is_completed() and result_of(trace) == undisturbed(STEPS)
    rows = await pool.rows(runs)
    other = f"GPU-000{1 - number}"
    assert [row.devices for row in rows] == [(other,), (other,)], "both ended on the GPU that is sound"
    await command("uncordon", sick)
    # A program outside the pool has half of the other one's memory by now.
    driver.says(*lines[:-1], gpu(1, total=8 << 30, reserved=0, used=0, programs=f"{os.getpid()}:{4 << 30}"))
    sick = "GPU-0001"
    assert f"python (pid {os.getpid()}" in await eventually(cordoned, "the GPU to be held back")
    assert f"In use: {sick}: python (pid" in " ".join((await command("devices")).split())
    after = await pool.submit("train", job_variables={"gpus": 2})
    waiting = await pool.until(after, "AwaitingGpu")
    assert f"{sick} is out of service: python (pid {os.getpid()}" in (waiting.message or "")
    driver.says(*lines)
    assert (await pool.until(after)).is_completed()
