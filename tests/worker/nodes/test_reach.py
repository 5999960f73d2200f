"""What of the worker's machine is led through a tunnel, and what runs are told of it."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from prefect_gpu.blocks.slurm import SlurmTunnel
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.reach import Reach
from prefect_gpu.settings import GpuSettings
from prefect_gpu.training.protocol import ENV_CHANNEL, ENV_CHANNEL_FILE
from prefect_gpu.worker.nodes.reach import tunnel_of
from prefect_gpu.worker.setup_error import SetupError

NODE, WORKER = SlurmTunnel(via="login1"), SlurmTunnel(opened_by="worker")
RECORD = words.Record("token", "one", ports=(20001, 20002, 20003))


@pytest.mark.parametrize(
    ("tunnel", "api", "target"),
    [
        (NODE, "http://localhost:4200/api", "10.0.0.1:4200"),  # as the login node calls this machine
        (WORKER, "http://localhost:4200/api", "localhost:4200"),
        (NODE, "http://10.0.0.1:4200/api", "10.0.0.1:4200"),
        (NODE, "https://api.prefect.cloud/api/accounts/1/workspaces/2", ""),  # which nodes reach by themselves
        (SlurmTunnel(via="login1", server="prefect.lab:4200"), "http://prefect.example/api", "prefect.lab:4200"),
    ],
)
def test_the_server_is_led_to_if_it_is_here_or_is_named(tunnel: SlurmTunnel, api: str, target: str) -> None:
    assert tunnel_of(tunnel, GpuSettings(advertise="10.0.0.1"), api).targets == ("", "", target)


def test_a_server_whose_certificate_is_for_another_name_is_refused_with_the_remedy() -> None:
    with pytest.raises(SetupError, match=r"is for another name .* Give the worker an address"):
        tunnel_of(NODE, GpuSettings(advertise="10.0.0.1"), "https://localhost:4200/api")


def test_runs_are_told_the_ports_of_their_node_and_nothing_else_is_changed() -> None:
    told = tunnel_of(NODE, GpuSettings(advertise="10.0.0.1"), "http://localhost:4200/api")
    reach = Reach(told, logging.getLogger("test"))
    agents = reach.begin("ws://10.0.0.1:4290", "ws://10.0.0.1:4291")
    assert agents is not None and agents.targets == ("10.0.0.1:4290", "10.0.0.1:4291", "10.0.0.1:4200")
    env = {
        "PREFECT_API_URL": "http://10.0.0.1:4200/api",
        "PREFECT_SERVER_UI_API_URL": "http://ui.lab:4200/api",
        ENV_CHANNEL: "ws://10.0.0.1:4291",
        ENV_CHANNEL_FILE: "/state/channel.json",
        "LR": "0.1",
    }
    assert reach.environment(env, RECORD) == {
        "PREFECT_API_URL": "http://127.0.0.1:20003/api",
        "PREFECT_SERVER_UI_API_URL": "http://ui.lab:4200/api",
        ENV_CHANNEL: "ws://127.0.0.1:20002",
        "LR": "0.1",
    }
    # An allocation that was asked for before there was a tunnel.
    assert reach.environment(env, dataclasses.replace(RECORD, ports=())) == env
