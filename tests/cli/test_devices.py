from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, InProcess
from tests.nvml_stub import NvmlStub, build


def test_virtual_devices_are_never_called_gpus(run_cli: InProcess) -> None:
    done = run_cli("devices", PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES="3")
    assert done.exit_code == 0
    assert "virtual-2" in done.stdout
    assert "trains on the CPU" in done.stdout
    assert "These are not GPUs" in done.stdout


def test_no_device_ends_with_1(run_cli: InProcess) -> None:
    done = run_cli("devices", PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICES="0")
    assert done.exit_code == 1
    assert "VIRTUAL_DEVICES=2" in done.stdout


def test_json(run_cli: InProcess) -> None:
    done = run_cli("devices", "--json", PREFECT_INTEGRATIONS_GPU_VIRTUAL_DEVICE_MEMORY="1GiB")
    told = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["node"]["devices"][0] == {
        "id": "virtual-0", "kind": "virtual", "memory_bytes": 2**30, "virtual": True,
        "index": None, "cores": [], "parent": None, "capability": None, "links": [],
    }  # fmt: skip


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlStub:
    return NvmlStub(build(tmp_path), tmp_path / "nvml-state")


def test_what_a_driver_tells_is_shown(cli: Cli, nvml: NvmlStub) -> None:
    """The driver is a stand-in: this is about the table, not about a GPU."""
    gib = 2**30
    nvml.says(
        "driver|init=0",
        f"gpu|uuid=GPU-aaaa|name=NVIDIA Test 40GB|total={40 * gib}|used={10 * gib}|util=35|cores=3",
        f"gpu|uuid=GPU-bbbb|name=NVIDIA Test 40GB|total={40 * gib}|mig=1",
        f"mig|slot=0|uuid=MIG-cccc|name=NVIDIA Test MIG 1g.5gb|total={5 * gib}",
        "gpu|handle_error=15",
    )
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2"} | {
        name: value for name, value in nvml.environment().items() if name in ("LD_LIBRARY_PATH", "NVML_STUB_STATE")
    }
    done = cli("devices", **environment)
    assert done.returncode == 0
    line = next(line for line in done.stdout.splitlines() if "GPU-aaaa" in line)
    assert "40 GiB" in line
    assert "10 GiB" in line
    assert "35%" in line
    line = next(line for line in done.stdout.splitlines() if "MIG-cccc" in line)
    assert "1 (MIG)" in line
    assert "–" in line
    assert "GPU 2" in done.stdout
    assert "fallen off the bus" in done.stdout
