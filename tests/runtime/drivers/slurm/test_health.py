"""An agent tells its worker of the GPUs that fail on its node. A stand-in for NVIDIA's library gives the answers."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest

from prefect_gpu.runtime.devices.cordons import Cordons
from prefect_gpu.runtime.devices.fleet import Fleet
from prefect_gpu.runtime.devices.health_watch import HealthWatch
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.driver import SlurmDriver
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub
from prefect_gpu.runtime.drivers.slurm.nodes import node_of
from prefect_gpu.scheduling.model.cluster import Node
from tests.nvml_stub import NvmlStub, build
from tests.runtime.stand_ins import until
from tests.runtime.telemetry.test_nvml import DRIVER, gpu

LOGGER = logging.getLogger("tests.slurm.health")
NAME = "pool-1"


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlStub:
    return NvmlStub(build(tmp_path), tmp_path / "nvml-state")


async def test_a_gpu_that_fails_on_a_node_of_slurms_is_taken_out_of_service(tmp_path: Path, nvml: NvmlStub) -> None:
    fleet, cordons = Fleet(), Cordons(tmp_path)
    driver = cast(Any, object.__new__(SlurmDriver))
    driver.on_faults = HealthWatch(cordons, fleet, LOGGER).found
    hub = AgentHub(driver._heard, host="127.0.0.1", port=0, advertise=None, logger=LOGGER)
    await hub.start()
    agent = words.agent_id(NAME, 0)
    hub.admit(agent, "token")
    hub.open()
    (tmp_path / f"{NAME}.json").write_text(json.dumps(asdict(words.Record("token", "shape"))))
    (tmp_path / words.AGENTS).write_text(json.dumps(asdict(words.Settings(hub.url, python=sys.executable))))
    nvml.says(DRIVER, gpu(0), gpu(1))
    command = [sys.executable, "-m", "prefect_gpu.runtime.drivers.slurm.agent", str(tmp_path), NAME]
    process = await asyncio.create_subprocess_exec(
        *command, env=nvml.environment(), cwd=tmp_path, start_new_session=True
    )
    try:
        told = await hub.ask(agent, words.DESCRIBE)
        node: Node = node_of("n1.7", told)
        assert [device.id for device in node.devices] == ["GPU-0000", "GPU-0001"]
        fleet.change([node])
        nvml.says(DRIVER, gpu(0), gpu(1), "event|gpu=0|xid=13", "event|gpu=1|xid=79")
        await until(lambda: cordons.read())
        found = cordons.read()
        assert found.keys() == {"GPU-0001"} and "fallen off the bus" in found["GPU-0001"].reason
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # as Slurm does
        await process.wait()
        await hub.close()
