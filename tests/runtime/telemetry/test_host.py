from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from prefect_gpu.runtime.telemetry import host, inventory, take_inventory
from prefect_gpu.runtime.telemetry.declared import declared
from tests.runtime.telemetry.remedies import names_its_remedies


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V = "proc/self/cgroup"
TOTAL = psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, TOTAL, id="no cgroups at all"),
        pytest.param({V: "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, TOTAL, id="v2 without limit"),
        pytest.param({V: "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000, id="v2"),
        pytest.param(
            {V: "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000", "sys/fs/cgroup/a/memory.max": "4000"},
            4000, id="v2, a parent is tighter",
        ),
        pytest.param({V: "0::/\n", "sys/fs/cgroup/memory.max": "6000"}, 6000, id="v2 inside a container"),
        pytest.param(
            {V: "4:memory:/docker/x\n0::/\n",
             "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "7000"},
            7000, id="v1",
        ),
        pytest.param(
            {V: "4:memory:/docker/x\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "7000"},
            7000, id="v1 inside a container, which sees the host's path",
        ),
        pytest.param(
            {V: "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            TOTAL, id="v1 without limit",
        ),
    ],
)  # fmt: skip
def test_memory_is_what_the_cgroup_leaves(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert host.usable_memory_bytes(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, None, id="no cgroups"),
        pytest.param({V: "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000"}, None, id="v2 without quota"),
        pytest.param({V: "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5, id="v2"),
        pytest.param(
            {V: "3:cpu,cpuacct:/\n", "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
             "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000"}, 2.0, id="v1",
        ),
        pytest.param(
            {V: "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
             "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None, id="v1 without quota",
        ),
    ],
)  # fmt: skip
def test_cpu_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    assert host.cpu_quota(tree(tmp_path, files)) == expected


def test_the_inventory_has_the_cores_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    taken = take_inventory(virtual_devices=1, virtual_device_memory_bytes=1 << 20)
    assert set(taken.cpus) == os.sched_getaffinity(0)
    assert [device.id for device in taken.devices] == ["virtual-0"]


def test_no_device_at_all_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    taken = take_inventory(virtual_devices=0, virtual_device_memory_bytes=1 << 20)
    [finding] = [finding for finding in taken.findings if finding.subject == "devices"]
    names_its_remedies(map(asdict, taken.findings))
    assert taken.devices == ()
    assert finding.level == "error"
    assert "VIRTUAL_DEVICES" in finding.remedy


def test_more_virtual_memory_than_the_machine_has_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    taken = take_inventory(virtual_devices=2, virtual_device_memory_bytes=TOTAL)
    assert "memory" in {finding.subject for finding in taken.findings if finding.level == "warning"}
    names_its_remedies(map(asdict, taken.findings))


def test_a_quota_below_the_visible_cores_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(inventory.host, "cpu_quota", lambda: 0.5)
    taken = take_inventory(virtual_devices=1, virtual_device_memory_bytes=1 << 20)
    assert "cores" in {finding.subject for finding in taken.findings}
    names_its_remedies(map(asdict, taken.findings))


def test_more_virtual_devices_than_a_node_can_have_are_refused() -> None:
    """A worker with a hundred thousand of them was busy with itself."""
    assert len(declared("1000,24xT4")) == 1024
    for text in ("1025", "100000", "1000,25xT4"):
        with pytest.raises(ValueError, match="are more than 1024 devices: declare fewer"):
            declared(text)
