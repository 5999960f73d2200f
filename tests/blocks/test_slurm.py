"""The block that says what Slurm is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_gpu.blocks import GpuSlurm, SlurmShape
from prefect_gpu.blocks.files import read_file
from prefect_gpu.blocks.slurm import SlurmTunnel

ONE = {"name": "one", "time": "60", "gres": "gpu:1"}


def test_a_site_that_wants_one_job_for_each_run_keeps_no_allocations() -> None:
    assert GpuSlurm(shapes=[SlurmShape(**ONE)], mode="one-job-per-run").plan("python3").one_run
    assert not GpuSlurm(shapes=[SlurmShape(**ONE, minimum=1)]).plan("python3").one_run
    with pytest.raises(ValueError, match="minimum of shape one keeps allocations without a run"):
        GpuSlurm(shapes=[SlurmShape(**ONE, minimum=1)], mode="one-job-per-run")
    with pytest.raises(ValueError, match="'allocations' or 'one-job-per-run'"):
        GpuSlurm(shapes=[SlurmShape(**ONE)], mode="pilots")


@pytest.mark.parametrize(
    ("written", "minutes"), [("4:00:00", 240), ("30:00", 30), ('"12:00:00"', 720), ("90", 90), ("2-00:00:00", 2880)]
)
def test_a_wall_time_needs_no_quotes(tmp_path: Path, written: str, minutes: int) -> None:
    """YAML 1.1 takes 4:00:00 for a number to the base 60, which would be ten days of minutes."""
    file = tmp_path / "slurm.yaml"
    shapes = f"shapes: [{{name: one, gres: gpu:1, time: {written}, maximum: 3}}]"
    file.write_text(f"block: gpu-slurm\nname: lab\n{shapes}\n")
    [described] = read_file(file)
    assert isinstance(described.block, GpuSlurm)
    [shape] = described.block.plan("python3").shapes
    assert (shape.minutes, shape.maximum) == (minutes, 3)


def test_an_allocation_may_have_nodes_of_several_kinds() -> None:
    """It is a heterogeneous job then."""
    shape = SlurmShape(**ONE, partition="gpu", more_nodes=[{"nodes": 2, "cpus": 16, "partition": "cpu"}])
    [planned] = GpuSlurm(shapes=[shape]).plan("python3").shapes
    assert [(part.nodes, part.devices, part.cpus, part.partition) for part in planned.parts] == [
        (1, 1, 1, "gpu"),
        (2, 0, 16, "cpu"),
    ]
    options = planned.options("name", Path("/log"))
    assert options.count(":") == 1 and options.count("--job-name=name") == 2
    assert "srun --het-group=0 --cpus-per-task=1" in planned.script(Path("/state"), "name")
    assert " : --het-group=1 --cpus-per-task=16 " in planned.script(Path("/state"), "name")
    with pytest.raises(ValueError, match="':' asks for a heterogeneous job: name its other nodes as more_nodes"):
        SlurmShape(**ONE, flags=["--reservation=ours", ":", "--gres=gpu:4"])
    with pytest.raises(ValueError, match="qos is no field of more_nodes"):
        SlurmShape(**ONE, more_nodes=[{"qos": "urgent"}])


def test_slurmrestd_is_asked_where_the_block_names_it_and_only_for_what_it_can_be_asked() -> None:
    shape = SlurmShape(**ONE, flags=["--reservation=ours"])
    by_rest = GpuSlurm(shapes=[shape], rest="http://login:6820", rest_token="/keys/slurm")
    assert type(by_rest.client()).__name__ == "SlurmRest"
    assert type(GpuSlurm(shapes=[shape]).client()).__name__ == "SlurmClient"
    with pytest.raises(ValueError, match="is no address of slurmrestd: write http://HOST:PORT or unix:///PATH"):
        GpuSlurm(shapes=[shape], rest="login:6820")
    with pytest.raises(ValueError, match="'--begin=tomorrow' cannot be asked of slurmrestd"):
        GpuSlurm(shapes=[SlurmShape(**ONE, flags=["--begin=tomorrow"])], rest="http://login:6820")


def test_a_tunnel_is_named_by_the_machine_it_goes_through_or_in_full() -> None:
    block = GpuSlurm(shapes=[SlurmShape(**ONE)], tunnel="login1")
    assert block.tunnel == SlurmTunnel(via="login1", opened_by="node")
    assert GpuSlurm(shapes=[SlurmShape(**ONE)], tunnel={"opened_by": "worker"}).tunnel == SlurmTunnel(
        opened_by="worker"
    )


@pytest.mark.parametrize(
    ("tunnel", "said"),
    [
        ({}, "via is missing: name the machine where the nodes log in"),
        ({"via": "-oProxyCommand=true"}, "is no machine: give ssh's options as ssh_options"),
        ({"via": "login1", "server": "prefect.lab"}, "is no HOST:PORT: write prefect.lab:4200"),
        ({"via": "login1", "direction": "node"}, "direction is no field of tunnel"),
        ({"via": "login1", "opened_by": "me"}, "'node' or 'worker'"),
    ],
)
def test_what_a_tunnel_cannot_be_is_said_with_the_remedy(tunnel: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GpuSlurm(shapes=[SlurmShape(**ONE)], tunnel=tunnel)
