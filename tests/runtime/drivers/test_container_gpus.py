"""What is asked of an Engine so that a container gets its GPUs. What comes of it: ``docker/test_gpus.py``."""

from __future__ import annotations

import pytest

from prefect_gpu.runtime.drivers.docker.gpus import CAPABILITIES, VISIBLE, gpu_access

GPUS = ("GPU-1", "MIG-2")


def test_an_engine_with_nvidias_runtime_is_asked_for_that() -> None:
    access = gpu_access(GPUS, {"runc", "nvidia"}, {})
    assert access.runtime == "nvidia" and not access.requests
    assert access.environment == {VISIBLE: "GPU-1,MIG-2", CAPABILITIES: "compute,utility"}


def test_an_engine_without_it_is_asked_for_devices() -> None:
    access = gpu_access(GPUS, {"runc", "io.containerd.runc.v2"}, {})
    assert access.runtime is None
    (request,) = access.requests
    assert dict(request) == {
        "Driver": "nvidia",
        "Count": 0,
        "DeviceIDs": ["GPU-1", "MIG-2"],
        "Capabilities": [["gpu"]],
        "Options": {},
    }
    assert access.environment[VISIBLE] == "GPU-1,MIG-2"


@pytest.mark.parametrize("runtimes", [("nvidia",), ()])
def test_who_was_granted_none_sees_none_whatever_the_image_declares(runtimes: tuple[str, ...]) -> None:
    access = gpu_access((), runtimes, {VISIBLE: "all", CAPABILITIES: "all"})
    assert (access.runtime, access.requests, access.environment) == (None, (), {VISIBLE: "void"})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [("", "compute,utility"), ("video", "video,compute,utility"), ("utility,compute", "utility,compute"), ("all",) * 2],
)
def test_the_capabilities_that_an_image_declares_are_kept_and_completed(declared: str, expected: str) -> None:
    access = gpu_access(GPUS, ("nvidia",), {VISIBLE: "all", CAPABILITIES: declared})
    assert access.environment == {VISIBLE: "GPU-1,MIG-2", CAPABILITIES: expected}
