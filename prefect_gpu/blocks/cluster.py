"""The block that says how a pool's Docker Engine or Swarm is reached, and what its nodes are."""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, ValidationInfo, field_validator, model_validator

from prefect_gpu.blocks.base import StrictBlock, plain, refuse_unknown
from prefect_gpu.links import LOGO_OF_PROCESSES
from prefect_gpu.runtime.telemetry.declared import declared
from prefect_gpu.units import check_price, parse_bytes

_SCHEMES = ("unix", "tcp", "ssh", "http", "https")
_PEM = "-----BEGIN "
_SSH_PUBLIC = " AAAA"  # what every public key of ssh begins with, after its kind


class ClusterNode(BaseModel):
    """What a node is to the scheduler. What is left out is what the node says of itself.

    Attributes:
        name: The host name of the node, as ``docker node ls`` shows it.
        endpoint: The node's own Engine, if it is not where the others are.
        rack: Nodes of one rack reach each other well.
        domain: No training that takes several nodes straddles two domains.
        cores: How many of its cores runs may use, counted from 0.
        virtual_devices: Virtual devices, on a node without GPUs: their number, or 2xA100-40GiB. They are not GPUs.
        virtual_device_memory: Memory of each of them, such as ``8GiB``.
        gpus: UUIDs of its GPUs, if neither a probe nor its Engine's generic resources are to say which it has.
        gpu_memory: Memory of each GPU, such as ``80GiB``.
        gpu_kind: Product name of its GPUs.
        network_bytes_per_s: Bandwidth of its network link, such as ``1.25GB`` for 10 Gbit/s.
        uplink_bytes_per_s: Bandwidth between its rack and the others, which the nodes of the rack share.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    name: str = Field(min_length=1)
    endpoint: str | None = None
    rack: str | None = None
    domain: str | None = None
    cores: int | None = Field(default=None, ge=1)
    virtual_devices: int | str | None = None
    virtual_device_memory: str | None = None
    gpus: list[str] | None = None
    gpu_memory: str | None = None
    gpu_kind: str | None = None
    network_bytes_per_s: str | None = None
    uplink_bytes_per_s: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, values: Any) -> Any:
        if isinstance(values, dict):
            refuse_unknown(values, set(cls.model_fields), f"node {values.get('name', '?')}")
        return values

    @field_validator("virtual_device_memory", "gpu_memory", "network_bytes_per_s", "uplink_bytes_per_s")
    @classmethod
    def _valid_size(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            parse_bytes(value, field=str(info.field_name))
        return value

    @field_validator("virtual_devices")
    @classmethod
    def _valid_devices(cls, value: int | str | None) -> int | str | None:
        if value is not None:
            declared(value)
        return value

    @field_validator("endpoint")
    @classmethod
    def _valid_endpoint(cls, value: str | None) -> str | None:
        return _endpoint("endpoint", value)

    @property
    def labels(self) -> dict[str, str]:
        """What the node's labels would be, if it had been labelled: ``{"prefect-gpu.rack": "a", ...}``."""
        stated = self.model_dump(exclude={"name"}, exclude_none=True)
        texts = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in stated.items()}
        return {f"prefect-gpu.{name.replace('_', '-')}": text for name, text in texts.items()}


class GpuCluster(StrictBlock):
    """The Engine or the Swarm that a pool runs on, and what is to be known of its nodes.

    The worker is told of it by name: ``PREFECT_INTEGRATIONS_GPU_CLUSTER=NAME``.

    Example:
        ```python
        from prefect_gpu.blocks import GpuCluster

        cluster = GpuCluster.load("BLOCK_NAME")
        ```

        >>> GpuCluster(driver="swarm", endpoint="tcp://10.0.0.1:2376", nodes=[ClusterNode(name="n1", rack="a")]).labels
        {'n1': {'prefect-gpu.rack': 'a'}}
    """

    _block_type_name = "GPU Cluster"
    _block_type_slug = "gpu-cluster"
    _logo_url = HttpUrl(LOGO_OF_PROCESSES)
    _description = "The Docker Engine or the Docker Swarm that a GPU pool runs on, and what its nodes are."

    driver: Literal["docker", "swarm"] = Field(
        default="swarm", description="One Docker Engine (docker), or the nodes of a Docker Swarm (swarm)."
    )
    endpoint: str | None = Field(
        default=None,
        description="The Engine, or the Engine of a manager of the Swarm: unix:///var/run/docker.sock, "
        "tcp://host:2376, or ssh://user@host (see ssh_key). Default: the worker's own.",
    )
    node_url: str | None = Field(
        default=None,
        description="Address of the Engines of a Swarm's nodes, with {address} or {name} in it. Default: "
        "tcp://{address}:2376.",
    )
    ca: str | None = Field(
        default=None,
        description="Certificate of the Engines' authority: PEM, or a path on the worker's machine.",
    )
    certificate: str | None = Field(
        default=None, description="The worker's certificate: PEM, or a path on the worker's machine."
    )
    key: SecretStr | None = Field(
        default=None, description="The key of the worker's certificate: PEM, or a path on the worker's machine."
    )
    ssh_key: SecretStr | None = Field(
        default=None,
        description="For ssh://, a private key without a passphrase: itself, or a path on the worker's machine. "
        "Default: as ssh does for the worker's user, with ~/.ssh/config and an agent.",
    )
    ssh_known_hosts: str | None = Field(
        default=None,
        description="For ssh://, the host keys that are accepted: lines as ssh-keyscan prints them, or a path on the "
        "worker's machine. Default: as ssh does for the worker's user.",
    )
    device_hour_price: float | dict[str, float] | None = Field(
        default=None,
        description="What an hour of one device costs, in your currency; or by kind of device, where a part of its "
        "name is enough: {H100: 2.5, A100: 1.2}.",
    )
    nodes: list[ClusterNode] = Field(
        default_factory=list, description="What is stated here about a node overrides what the node says."
    )

    @field_validator("endpoint")
    @classmethod
    def _valid_endpoint(cls, value: str | None) -> str | None:
        return _endpoint("endpoint", value)

    @field_validator("node_url")
    @classmethod
    def _valid_node_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        _without_password("node_url", value)
        try:
            filled = value.format(address="192.0.2.1", name="node")
        except (KeyError, IndexError, ValueError):
            filled = value
        if filled == value:
            raise ValueError(f"node_url={value!r}: it needs {{address}} or {{name}} in it, and no other brace")
        _endpoint("node_url", filled)
        return value

    @field_validator("device_hour_price")
    @classmethod
    def _valid_price(cls, value: float | dict[str, float] | None) -> float | dict[str, float] | None:
        check_price("device_hour_price", value)
        return value

    @field_validator("ssh_key")
    @classmethod
    def _valid_ssh_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and _SSH_PUBLIC in value.get_secret_value():
            raise ValueError("ssh_key: this is a public key; give the private one, from the file without .pub")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> GpuCluster:
        if bool(self.certificate) != bool(plain(self.key)):
            given, lacking = ("certificate", "key")[:: 1 if self.certificate else -1]
            raise ValueError(f"{given} is set and {lacking} is not: give both, or neither")
        names = [node.name for node in self.nodes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"nodes: {twice[0]!r} is there twice: state each node once")
        gpus = [gpu for node in self.nodes for gpu in node.gpus or ()]
        if twice := sorted({gpu for gpu in gpus if gpus.count(gpu) > 1}):
            raise ValueError(f"nodes: the GPU {twice[0]!r} is there twice: state it once, on the node that has it")
        if self.driver == "docker":
            if len(names) > 1:
                raise ValueError(f"nodes: there are {len(names)}, and driver='docker' has one: use driver='swarm'")
            if any(node.endpoint for node in self.nodes):
                raise ValueError(f"endpoint of node {names[0]!r}: with driver='docker', give the block's own endpoint")
        return self

    @property
    def labels(self) -> dict[str, dict[str, str]]:
        """What is stated of each node, by its name."""
        return {node.name: node.labels for node in self.nodes}

    @property
    def credentials(self) -> dict[str, str]:
        """What is given of ``ca``, ``certificate``, ``key``, ``ssh_key`` and ``ssh_known_hosts``: each itself, or its
        path. Secret."""
        found = {
            "ca": self.ca,
            "certificate": self.certificate,
            "key": plain(self.key),
            "ssh_key": plain(self.ssh_key),
            "ssh_known_hosts": self.ssh_known_hosts,
        }
        return {name: value for name, value in found.items() if value}


def is_content(text: str) -> bool:
    """Whether these are certificates or keys themselves, and not a file's path."""
    return text.lstrip().startswith(_PEM) or _SSH_PUBLIC in text


def _endpoint(field: str, value: str | None) -> str | None:
    if value is None:
        return None
    _without_password(field, value)
    parts = urlsplit(value)
    if parts.scheme not in _SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
        raise ValueError(
            f"{field}={value!r} is no address of an Engine: unix:///var/run/docker.sock, tcp://host:2376 or "
            "ssh://user@host"
        )
    return value


def _without_password(field: str, value: str) -> None:
    """Complain of a password, also in what is no address: the error about that would show it."""
    if re.search(r":(?!//)[^@]*@", value):
        raise ValueError(
            f"{field}: a password does not belong there; Engines are reached with certificates or ssh keys"
        )
