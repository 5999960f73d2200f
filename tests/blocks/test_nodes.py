"""What a block states of a node counts more than what the node says of itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prefect_gpu.blocks import ClusterNode
from prefect_gpu.runtime.drivers.docker.nodes import Gpu, SwarmNode

GIB = 1024**3
NODE = SwarmNode("id", "n1", "10.0.0.1", True, True, {"prefect-gpu.rack": "a", "prefect-gpu.domain": "d"}, 8, 64 * GIB)


def test_what_is_stated_counts_and_the_rest_stays() -> None:
    stated = ClusterNode(
        name="n1",
        rack="b",
        cores=6,
        virtual_devices=2,
        virtual_device_memory="4GiB",
        network_bytes_per_s="125MB",
        uplink_bytes_per_s="25MB",
    )
    node = NODE.stated(stated.labels).as_node()
    assert (node.rack, node.domain, node.cpus) == ("b", "d", tuple(range(6)))
    assert (node.network_bps, node.uplink_bps) == (125e6, 25e6)
    assert [(device.id, device.memory_bytes, device.virtual) for device in node.devices] == [
        ("n1/virtual-0", 4 * GIB, True),
        ("n1/virtual-1", 4 * GIB, True),
    ]


def test_gpus_are_described() -> None:
    stated = ClusterNode(name="n1", gpu_memory="80GiB", gpu_kind="A100")
    (device,) = replace(NODE, gpus=(Gpu("GPU-1"),)).stated(stated.labels).as_node().devices
    assert (device.id, device.kind, device.memory_bytes, device.virtual) == ("GPU-1", "A100", 80 * GIB, False)


def test_gpus_that_are_stated_count_more_than_those_that_the_engine_declares() -> None:
    stated = ClusterNode(name="n1", gpus=["GPU-2", "MIG-3"], gpu_memory="80GiB")
    node = replace(NODE, gpus=(Gpu("GPU-1"),)).stated(stated.labels)
    assert [device.id for device in node.as_node().devices] == ["GPU-2", "MIG-3"]
    none = replace(NODE, gpus=(Gpu("GPU-1"),)).stated(ClusterNode(name="n1", gpus=[], virtual_devices=1).labels)
    assert [device.id for device in none.as_node().devices] == ["n1/virtual-0"]


@pytest.mark.parametrize("stated", [{"gpus": ["0"], "gpu_memory": "80GiB"}, {"gpus": ["GPU-1"]}])
def test_gpus_of_which_too_little_is_stated_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Node n1 has .*(UUID|state the memory)"):
        NODE.stated(ClusterNode(name="n1", **stated).labels).as_node()


def test_a_gpu_that_a_label_names_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Node n1 has the label prefect-gpu\.gpus='GPU-1, GPU-1': name each"):
        NODE.stated({"prefect-gpu.gpus": "GPU-1, GPU-1", "prefect-gpu.gpu-memory": "80GiB"}).as_node()


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (NODE, True),
        (replace(NODE, virtual={"prefect-gpu.virtual-devices": "2"}), True),
        (NODE.stated({"prefect-gpu.gpu-memory": "80GiB"}), True),
        (NODE.stated({"prefect-gpu.virtual-devices": "2"}), False),
        (NODE.stated({"prefect-gpu.gpus": ""}), False),
        (replace(NODE, gpus=(Gpu("GPU-1"),)), False),
    ],
    ids=["nothing", "the settings' virtual devices", "memory", "virtual devices", "no GPUs", "declared GPUs"],
)
def test_a_probe_is_needed_where_nobody_says_which_devices_there_are(node: SwarmNode, expected: bool) -> None:
    assert node.needs_probe is expected


def test_a_node_of_which_nothing_is_stated_is_as_it_was() -> None:
    assert NODE.stated(None) is NODE
    assert NODE.stated({}).as_node() == NODE.as_node()


def test_more_cores_than_the_machine_has_are_refused() -> None:
    stated = ClusterNode(name="n1", cores=9)
    with pytest.raises(ValueError, match=r"Node n1 has the label prefect-gpu.cores='9', and its machine has 8"):
        NODE.stated(stated.labels).as_node()
