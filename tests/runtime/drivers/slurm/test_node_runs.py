"""What an agent keeps of the runs that it has started: nothing, once they have ended."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.runtime.drivers import intent
from prefect_gpu.runtime.drivers.base import LaunchError
from prefect_gpu.runtime.drivers.slurm.folders import OwnFolders
from prefect_gpu.runtime.drivers.slurm.node_runs import NodeRuns
from tests.runtime.stand_ins import MemoryDriver, until

SPEC = {"run_id": "run", "argv": ["python"], "env": {}, "cwd": "", "cpus": [], "label": "run", "told_at": ["P", "T"]}


@pytest.mark.parametrize("fails", [False, True])
async def test_nobody_listens_any_more_for_a_run_that_has_ended_or_never_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    driver, posted, ports = MemoryDriver(), list[Any](), list[int]()
    variables = intent.Listener.variables

    def told(self: intent.Listener, port: str, token: str) -> dict[str, str]:
        found = variables(self, port, token)
        ports.append(int(found[port]))
        return found

    monkeypatch.setattr(intent.Listener, "variables", told)
    runs = NodeRuns(
        driver,  # type: ignore[arg-type]
        OwnFolders("agent", {}),
        sys.executable,
        post=lambda kind, data: posted.append(kind),
        crowded=lambda: False,
        over=asyncio.Event(),
    )
    before = threading.active_count()
    if fails:
        driver.refuse = LaunchError("no such program")
        with pytest.raises(LaunchError):
            await runs.launch("/worker/run", SPEC)
    else:
        await runs.launch("/worker/run", SPEC)
        [handle] = driver.world.values()
        await asyncio.sleep(0.1)  # somebody waits for the program to connect by then
        handle.end()
        await until(lambda: posted)
    await until(lambda: threading.active_count() <= before + 1)  # one of those that asyncio keeps
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", ports[0]))
