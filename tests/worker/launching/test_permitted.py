"""What runs may ask of the machines that their containers are on."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_gpu.runtime.drivers.base import ContainerSpec
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.launching.permitted import permitted

ASKED = ContainerSpec("team/image:1")


def ask(settings: dict[str, Any] | None = None, **asked: Any) -> ContainerSpec:
    return permitted(ContainerSpec(**{"image": "team/image:1"} | asked), GpuSettings(**settings or {}))


@pytest.mark.parametrize(
    "volume", ["/:/host", "/var/run/docker.sock:/s", "/data:/data:ro", "somebody:/data", "data:/d"]
)
def test_nothing_of_the_host_is_mounted_unless_the_operator_says_so(volume: str) -> None:
    with pytest.raises(
        ValueError, match=r"volumes='.*' is not allowed.* none\..*PREFECT_INTEGRATIONS_GPU_CONTAINER_VOL"
    ):
        ask(volumes=(volume,))


def test_what_is_below_an_allowed_folder_is_mounted_and_nothing_beside_it() -> None:
    settings = {"container_volumes": "/data:ro,/scratch,cache-*"}
    fine = (
        "/data/images:/d:ro",
        "/data:/d:ro",
        "/scratch/a:/s",
        "/scratch/x/../y:/s:rw",
        "cache-7:/c",
        "/scratch//a:/s",
    )
    assert ask(settings, volumes=fine).volumes == fine
    beside = ("/data:/d", "/data2:/d:ro", "/scratch/../etc:/e", "/scratch:/s:rshared", "/scratch:/s:rw,shared", "/:/h")
    for volume in (
        *beside,
        "scratch:/s",
        "../scratch:/s",
        "prefect-gpu-locks:/l",
        "/scratch",
        "",
        "/data/../scratch2:/s",
    ):
        with pytest.raises(ValueError, match="is not allowed"):
            ask(settings, volumes=(volume,))
    with pytest.raises(ValueError, match="is not allowed"):
        ask({"container_volumes": "*-cache"}, volumes=("/etc/x-cache:/x",))
    assert ask({"container_volumes": "*"}, volumes=("/:/host",)).volumes == ("/:/host",)


@pytest.mark.parametrize("network", ["host", "container:abc", "bridge", "prefect_default"])
def test_no_network_is_joined_unless_the_operator_says_so(network: str) -> None:
    with pytest.raises(ValueError, match=f"network='{network}' is not allowed.*CONTAINER_NETWORKS"):
        ask(network=network)
    assert ask({"container_networks": "team-*,host"}, network="team-a").network == "team-a"


@pytest.mark.parametrize("allowed", ["", "*", "none"])
def test_none_is_no_network_whatever_the_operator_says(allowed: str) -> None:
    with pytest.raises(ValueError, match=r"network='none' is not allowed: the run could reach neither Prefect nor"):
        ask({"container_networks": allowed}, network="none")


def test_images_may_be_limited() -> None:
    assert ask(image="whatever").image == "whatever"
    with pytest.raises(
        ValueError, match=r"image='whatever' is not allowed.*registry\.example/team/\*.*CONTAINER_IMAGES"
    ):
        ask({"container_images": "registry.example/team/*"}, image="whatever")


def test_memory_and_processes_are_limited() -> None:
    gib = 1 << 30
    settings = {"container_memory_max": "4GiB", "container_shm_max": "1GiB"}
    assert ask(settings).memory_bytes == 4 * gib, "who asks for none gets the most"
    assert ask(settings, memory_bytes=gib, shm_bytes=gib).memory_bytes == gib
    with pytest.raises(ValueError, match=r"memory_limit=8.*at most 4.*CONTAINER_MEMORY_MAX"):
        ask(settings, memory_bytes=8 * gib)
    with pytest.raises(ValueError, match=r"shm_size=2.*CONTAINER_SHM_MAX"):
        ask(settings, shm_bytes=2 * gib)
    assert ask().pids == 32_768 and ask({"container_pids_max": 0}).pids is None


def test_labels_of_ours_are_ours() -> None:
    assert ask(labels={"prefect-gpu.warm": "1", "team": "a"}).labels == {"team": "a"}
