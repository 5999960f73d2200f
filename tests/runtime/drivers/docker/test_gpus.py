"""GPUs of containers, on two real Engines with a stand-in for NVIDIA's container toolkit.

The stand-in (:mod:`tests.nvidia_toolkit`) is at the hardware border: that something works on a GPU, nothing here shows.
The first Engine has only the toolkit's hook, the second its runtime; dockerd has both ways for the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from prefect_gpu.lab import checkout
from prefect_gpu.lab.checkout import IMAGE
from prefect_gpu.lab.docker_nodes import Lab
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver, LaunchError
from prefect_gpu.runtime.drivers.conformance import MakeSpec, probes, until
from prefect_gpu.runtime.drivers.docker import DockerDriver, Endpoint, SwarmDriver, probe
from prefect_gpu.runtime.drivers.docker import driver as driver_module
from prefect_gpu.runtime.launch.run_environment import run_environment
from prefect_gpu.scheduling.model.cluster import Device, Node
from tests.nvidia_toolkit import Toolkit
from tests.support import process_number

LOGGER = logging.getLogger("test.gpus")
GIB = 1 << 30
HOOK, RUNTIME = 0, 1  # numbers of the Engines; the first one is the Swarm's manager
GPUS = (
    "gpu|uuid=GPU-a|name=NVIDIA Stand-in A|total=85899345920|reserved=1073741824|",
    "gpu|uuid=GPU-b|name=NVIDIA Stand-in B|total=42949672960|reserved=0|",
)
DRIVER = "driver|init=0|"
GREEDY = "prefect-gpu-greedy:1"  # an image that asks for all GPUs, as NVIDIA's own images do
SEEN = """
    import json, os
    from prefect_gpu.runtime.telemetry.nvml import list_devices
    listing = list_devices(host_memory_bytes=0)
    names = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES")
    print(json.dumps({
        "devices": [device.id for device in listing.devices],
        "driver": listing.no_driver is None,
        "environment": [os.environ.get(name) for name in names],
    }))
"""

pytestmark = pytest.mark.xdist_group("gpu lab")  # it has Engines of its own


@dataclasses.dataclass
class GpuLab:
    """Two Engines, and the toolkits that they have."""

    lab: Lab
    toolkit: Toolkit

    def engine(self, number: int) -> Endpoint:
        return Endpoint(self.lab.nodes[number].url)


@pytest.fixture(scope="module")
def gpu_lab() -> Iterator[GpuLab]:
    with tempfile.TemporaryDirectory(prefix="pgt-toolkit-") as folder:
        toolkit = Toolkit(Path(folder))
        toolkit.says(DRIVER, *GPUS)

        def prepare(lab: Lab) -> None:
            lab.nodes[RUNTIME].options = (f"--add-runtime=nvidia={toolkit.runtime}",)
            lab.nodes[HOOK].path = toolkit.hook.parent

        with checkout.started(
            Path(tempfile.gettempdir()) / f"pgg-{os.getpid()}",
            nodes=2,
            prefix=f"pgg{process_number()}",
            subnet=f"10.78.{process_number()}",
            prepare=prepare,
        ) as lab:
            for node in lab.nodes:
                client = Endpoint(node.url).connect()
                greedy = {"Env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"]}
                plain = client.containers.create(IMAGE, "true")
                plain.commit(*GREEDY.split(":"), conf=greedy)
                plain.remove()
                client.close()
            yield GpuLab(lab, toolkit)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is, the first answer is waited for."""
    monkeypatch.setattr(probe, "_PATIENCE_S", 600.0)


@contextlib.asynccontextmanager
async def driver_of(endpoint: Endpoint, image: str | None = IMAGE, **more: Any) -> AsyncIterator[DockerDriver]:
    driver = DockerDriver(
        endpoint,
        ContainerSpec(image, "never") if image else None,
        pool="p",
        echo=lambda label, line: None,
        logger=LOGGER,
        **more,
    )
    await driver.start()
    try:
        yield driver
    finally:
        await driver.close()


async def seen(
    driver: Driver, make_spec: MakeSpec, folder: Path, *gpus: str, image: str = IMAGE, node: str = ""
) -> Any:
    """What a run that was granted these GPUs sees, with the environment that the controller gives it."""
    devices = [Device(uuid, "", GIB) for uuid in gpus]
    assert driver.locks is not None
    own = run_environment(run_id="r", devices=devices, cpus=(), checkpoints="", locks=driver.locks, local=driver.local)
    spec = make_spec(SEEN, **(checkout.environment() | own))
    volumes = tuple(checkout.volumes(folder))
    spec = dataclasses.replace(spec, gpus=gpus, node=node, container=ContainerSpec(image, "never", volumes=volumes))
    report = await (await driver.launch(spec)).wait()
    assert report.returncode == 0, report.tail
    return json.loads(report.tail[-1])


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    return probes(tmp_path)


@pytest.mark.parametrize("number", [RUNTIME, HOOK], ids=["runtime", "hook"])
async def test_a_run_sees_the_gpus_that_it_was_granted_and_no_others(
    gpu_lab: GpuLab, make_spec: MakeSpec, tmp_path: Path, number: int
) -> None:
    grants: tuple[tuple[str, ...], ...] = (("GPU-a",), ("GPU-b",), ("GPU-a", "GPU-b"), ())
    async with driver_of(gpu_lab.engine(number)) as driver:
        runs = (seen(driver, make_spec, tmp_path, *granted, image=GREEDY) for granted in grants)
        for granted, found in zip(grants, await asyncio.gather(*runs), strict=True):
            assert tuple(found["devices"]) == granted and found["driver"] == bool(granted)
            visible, capabilities, cuda = found["environment"]
            assert (visible, cuda) == (",".join(granted) or "void", ",".join(granted))
            assert not granted or set(capabilities.split(",")) == {"compute", "utility"}


async def test_a_gpu_that_is_not_there_is_a_launch_error(gpu_lab: GpuLab, make_spec: MakeSpec, tmp_path: Path) -> None:
    async with driver_of(gpu_lab.engine(RUNTIME)) as driver:
        with pytest.raises(LaunchError, match=r"GPU-c: unknown device.*see `nvidia-smi -L` there"):
            await seen(driver, make_spec, tmp_path, "GPU-c")
    assert left(gpu_lab.engine(RUNTIME)) == []


def left(endpoint: Endpoint) -> list[str]:
    """Containers of an Engine, running or not."""
    client = endpoint.connect()
    try:
        return [one.name for one in client.containers.list(all=True)]
    finally:
        client.close()


# -- discovery ---------------------------------------------------------------------------------------------------------

FOUND = [("GPU-a", "NVIDIA Stand-in A", 79 * GIB), ("GPU-b", "NVIDIA Stand-in B", 40 * GIB)]
VIRTUAL = {"prefect-gpu.virtual-devices": "2", "prefect-gpu.virtual-device-memory": "8GiB"}


async def found_by(driver: DockerDriver) -> list[tuple[str, str, int]]:
    (node,) = await driver.nodes() or ()
    return [(device.id, device.kind, device.memory_bytes) for device in node.devices if not device.virtual]


async def test_gpus_that_nobody_has_stated_are_found_by_a_probe(gpu_lab: GpuLab) -> None:
    async with driver_of(gpu_lab.engine(RUNTIME), virtual=VIRTUAL) as driver:
        assert await found_by(driver) == FOUND
    assert left(gpu_lab.engine(RUNTIME)) == []


async def test_labels_count_more_than_what_a_probe_finds(gpu_lab: GpuLab) -> None:
    stated = {"prefect-gpu.gpu-kind": "ours", "prefect-gpu.gpu-memory": "20GiB"}
    name = gpu_lab.lab.nodes[RUNTIME].name
    async with driver_of(gpu_lab.engine(RUNTIME), stated={name: stated}) as driver:
        assert await found_by(driver) == [("GPU-a", "ours", 20 * GIB), ("GPU-b", "ours", 20 * GIB)]
    stated["prefect-gpu.gpus"] = "GPU-b"
    async with driver_of(gpu_lab.engine(RUNTIME), None, stated={name: stated}) as driver:
        assert await found_by(driver) == [("GPU-b", "ours", 20 * GIB)], "without an image there is no probe"


async def test_what_is_wrong_with_one_gpu_is_said_and_the_others_are_used(
    gpu_lab: GpuLab, caplog: pytest.LogCaptureFixture
) -> None:
    mig = "gpu|uuid=GPU-m|name=M|total=100|mig=1|", "mig|slot=3|uuid=MIG-1|name=M 1g|total=7|reserved=2|"
    gpu_lab.toolkit.says(DRIVER, "gpu|uuid=GPU-x|name=X|total=1|handle_error=15|", *mig, "gpu|uuid=GPU-p|mode=2|")
    try:
        async with driver_of(gpu_lab.engine(RUNTIME)) as driver:
            assert await found_by(driver) == [("MIG-1", "M 1g", 5)]
    finally:
        gpu_lab.toolkit.says(DRIVER, *GPUS)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "GPU 0 is left out: nvmlDeviceGetHandleByIndex_v2" in said and "GPU 2 is left out: its compute mode" in said


@pytest.mark.parametrize(
    ("image", "state", "words"),
    [
        (None, GPUS, "No image is given"),
        ("no-such-image:1", GPUS, "is not on its node"),
        (IMAGE, ("driver|init=9|",), "nvmlInitWithFlags: .* \\(error 9\\)"),
        (IMAGE, (DRIVER,), "knows no GPU that can be used"),
    ],
    ids=["no image", "an image that is not there", "a driver that fails", "no GPU"],
)
async def test_a_node_whose_gpus_cannot_be_found_has_no_devices_and_it_is_said_why_once(
    gpu_lab: GpuLab,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    image: str | None,
    state: tuple[str, ...],
    words: str,
) -> None:
    asked: list[probe.Discovery] = []
    ask = probe.Discovery._ask

    def counted(self: probe.Discovery) -> Any:
        asked.append(self)
        return ask(self)

    monkeypatch.setattr(probe.Discovery, "_ask", counted)
    monkeypatch.setattr(probe, "_AGAIN_S", 0.0)
    gpu_lab.toolkit.says(*state)
    try:
        async with driver_of(gpu_lab.engine(RUNTIME), image, virtual=VIRTUAL) as driver:
            while len(asked) < 3:
                (node,) = await driver.nodes() or ()
                assert node.devices == (), "somebody who pays for GPUs must not train on the CPU unawares"
            (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
            assert re.search(rf"Node {node.id}: Its GPUs are not known.*{words}.*prefect-gpu\.gpus=.*generic", said)
            if image == IMAGE:  # what was wrong with the driver is put right
                gpu_lab.toolkit.says(DRIVER, *GPUS)
                monkeypatch.setattr(driver_module, "SWEEP_S", 0.05)
                told: list[Sequence[Node]] = []
                watching = asyncio.create_task(driver.watch_nodes(told.append))
                await until(lambda: told and len(told[-1][0].devices) == len(FOUND))
                watching.cancel()
    finally:
        gpu_lab.toolkit.says(DRIVER, *GPUS)
    assert left(gpu_lab.engine(RUNTIME)) == []


async def test_an_engine_without_nvidias_runtime_has_its_virtual_devices(gpu_lab: GpuLab) -> None:
    async with driver_of(gpu_lab.engine(HOOK), virtual=VIRTUAL) as driver:
        (node,) = await driver.nodes() or ()
        assert [device.virtual for device in node.devices] == [True, True]


async def test_gpus_are_followed_as_nodes_drain_leave_and_come_back(
    gpu_lab: GpuLab, make_spec: MakeSpec, tmp_path: Path
) -> None:
    """The node comes back with one GPU less, and with NVIDIA's runtime for all containers."""
    node, manager = gpu_lab.lab.nodes[RUNTIME], gpu_lab.engine(HOOK)
    driver = SwarmDriver(manager, ContainerSpec(IMAGE, "never"), pool="p", logger=LOGGER)

    async def gpus() -> list[str] | None:
        found = {one.id: [device.id for device in one.devices] for one in await driver.nodes()}
        assert found.pop(gpu_lab.lab.nodes[HOOK].name) == []
        return found.get(node.name)

    async def come_to(expected: list[str] | None) -> None:
        while await gpus() != expected:  # noqa: ASYNC110 -- a Swarm's manager is asked again and again
            await asyncio.sleep(0.1)

    await driver.start()
    client = manager.connect()
    try:
        assert await gpus() == ["GPU-a", "GPU-b"]
        gpu_lab.toolkit.says(DRIVER, GPUS[1])
        (member,) = (one for one in client.nodes.list() if one.attrs["Description"]["Hostname"] == node.name)
        for availability, expected in (("drain", None), ("active", ["GPU-a", "GPU-b"])):
            member.reload()
            member.update({**member.attrs["Spec"], "Availability": availability})
            await come_to(expected)  # it was up all the time, and is not asked again
        gpu_lab.lab.stop_engine(node)
        await come_to(None)
        node.options = (*node.options, "--default-runtime=nvidia")
        await asyncio.to_thread(gpu_lab.lab.start_engine, node)
        await come_to(["GPU-b"])
        for granted in (("GPU-b",), ()):
            found = await seen(driver, make_spec, tmp_path, *granted, image=GREEDY, node=node.name)
            assert tuple(found["devices"]) == granted and found["driver"] == bool(granted)
    finally:
        gpu_lab.toolkit.says(DRIVER, *GPUS)
        client.close()
        await driver.close()
