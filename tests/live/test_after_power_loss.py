"""A worker that starts where its predecessor lost its power: what was not on the disk is empty."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from prefect_gpu.lab.sandbox import wait_until
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.training.protocol import ENV_DEVICES
from tests.live.pool import COLD, LivePool, eventually


@pytest.mark.full
async def test_what_a_power_loss_tears_neither_stops_the_worker_nor_keeps_or_frees_a_device(pool: LivePool) -> None:
    worker = pool.start_worker(virtual_devices="3", learn="false", **COLD)
    go = pool.folder / "go"
    vanished, ended, lives = [await pool.submit(hold=str(go)) for _ in range(3)]
    for run_id in (vanished, ended, lives):
        await pool.until(run_id, "Training")
    worker.kill()
    folders = {run_id: next((pool.state_dir / "runs").glob(f"{run_id}-*")) for run_id in (vanished, ended, lives)}
    started = {run_id: json.loads((folder / supervisor.PROCESS).read_text()) for run_id, folder in folders.items()}
    os.kill(started[vanished]["supervisor_pid"], signal.SIGKILL)
    for run_id in (vanished, ended):
        os.kill(started[run_id]["pid"], signal.SIGKILL)
    wait_until(lambda: (folders[ended] / supervisor.EXIT).exists(), what="no exit.json")
    for name in os.listdir(folders[vanished]):
        empty(folders[vanished] / name)
    empty(folders[ended] / supervisor.EXIT)
    for name in ("record.json", "first.json"):
        empty(folders[lives] / name)

    second = pool.start_worker(virtual_devices="3", learn="false", **COLD)
    assert (await pool.until(ended)).name == (await pool.until(vanished)).name == "Crashed"
    assert {row.outcome for row in await pool.rows([ended, vanished])} == {"crashed"}
    assert [second.output.count(f"{name} cannot be read") for name in ("process.json", "exit.json")] == [1, 1]
    device = started_on(started[lives]["pid"])
    assert f"Run {lives} goes on, and {device} cannot be granted until it has ended" in second.output
    one, three = await pool.submit(), await pool.submit(job_variables={"gpus": 3})
    await pool.until(one, "Completed")
    assert not pool.noted()[str(three)]  # it would need the device of the one that lives
    go.touch()
    await pool.until(lives, "Completed")
    await pool.until(three, "Completed")
    assert pool.noted("executed") == dict.fromkeys(map(str, (vanished, ended, lives, one, three)), 1)

    async def finalised() -> bool:
        return not os.listdir(pool.state_dir / "runs")

    await eventually(finalised, "every launch finalised")


def started_on(pid: int) -> str:
    """The device that a run was told."""
    environment = dict(word.split("=", 1) for word in Path(f"/proc/{pid}/environ").read_text().split("\0") if word)
    return str(json.loads(environment[ENV_DEVICES])[0]["id"])


def empty(path: Path) -> None:
    """What is left of a file that had its name before its content was on the disk."""
    if path.is_file():
        path.write_bytes(b"")
