"""What hardware counts of energy: GPUs by a stand-in for NVIDIA's library, processors in a made-up tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.runtime.telemetry.energy import CpuEnergy, gpu_energy_j
from tests.nvml_stub import NvmlStub
from tests.runtime.telemetry.test_nvml import DRIVER, gpu

ASK = """
import json
from prefect_gpu.runtime.telemetry.energy import gpu_energy_j
print(json.dumps([gpu_energy_j(name) for name in ("GPU-0000", "GPU-0001", "GPU-0002", "GPU-none", "virtual-0")]))
"""


def test_a_gpu_is_asked_for_its_counter(nvml: NvmlStub) -> None:
    nvml.says(DRIVER, gpu(0, energy=1_234_500), gpu(1), gpu(2, energy=7, energy_error=15))
    assert nvml.run(ASK) == [1234.5, None, None, None, None]


def test_without_a_driver_nothing_is_known() -> None:
    assert gpu_energy_j("virtual-0") is None


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Two packages, the cores of one as a part of it, and main memory."""
    rapl = {"intel-rapl:0": "package-0", "intel-rapl:1": "package-1", "intel-rapl:0:0": "core", "intel-rapl:2": "psys"}
    for folder, name in rapl.items():
        count(tmp_path, folder, 1_000_000)
        (tmp_path / "sys/class/powercap" / folder / "name").write_text(f"{name}\n")
        (tmp_path / "sys/class/powercap" / folder / "max_energy_range_uj").write_text("10000000")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text("cpu  100 50 30 9999 88 10 10 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n")
    return tmp_path


def count(root: Path, folder: str, microjoules: int) -> None:
    zone = root / "sys/class/powercap" / folder
    zone.mkdir(parents=True, exist_ok=True)
    (zone / "energy_uj").write_text(f"{microjoules}\n")


def test_packages_are_summed_and_their_parts_are_not(machine: Path) -> None:
    cpu = CpuEnergy(machine)
    assert cpu.read_j() == 0.0
    count(machine, "intel-rapl:0", 3_000_000)
    count(machine, "intel-rapl:1", 2_500_000)
    count(machine, "intel-rapl:0:0", 2_900_000)
    count(machine, "intel-rapl:2", 9_000_000)
    assert cpu.read_j() == pytest.approx(3.5)
    count(machine, "intel-rapl:0", 500_000)  # full at 10 J, and begun again
    assert cpu.read_j() == pytest.approx(3.5 + 7.5)


def test_who_may_not_read_a_package_knows_nothing(machine: Path) -> None:
    (machine / "sys/class/powercap/intel-rapl:1/energy_uj").write_text("")  # as an unreadable file reads
    assert CpuEnergy(machine).read_j() is None
    assert CpuEnergy(machine / "elsewhere").read_j() is None and CpuEnergy(machine / "elsewhere").busy_s() is None


def test_busy_time_is_what_was_computed(machine: Path) -> None:
    assert CpuEnergy(machine).busy_s() == pytest.approx(2.0)  # 200 ticks, without idling and waiting
