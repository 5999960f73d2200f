"""What the worker's settings say through Prefect blocks: the cluster, and where checkpoints are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from prefect.exceptions import ObjectNotFound
from pydantic import ValidationError

from prefect_gpu.blocks import CheckpointStorage, GpuCluster, GpuQuota, GpuSlurm
from prefect_gpu.blocks.base import BlockError, StrictBlock, explain
from prefect_gpu.blocks.cluster import is_content
from prefect_gpu.settings import GpuSettings, checkpoint_block

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_FILES = {
    "ca": "docker_ca",
    "certificate": "docker_certificate",
    "key": "docker_key",
    "ssh_key": "docker_ssh_key",
    "ssh_known_hosts": "docker_ssh_known_hosts",
}
_Found = TypeVar("_Found", bound=StrictBlock)


@dataclass(frozen=True)
class Chosen:
    """The settings with what blocks say filled in.

    Attributes:
        settings: They refer to no block any more, and hold no secret.
        nodes: Labels by node that count more than the nodes' own.
        credentials: ``AWS_...`` variables for the place of the checkpoints. Secret: not to be shown, nor to be kept.
        slurm: What Slurm is asked for; None: nothing.
    """

    settings: GpuSettings
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    slurm: GpuSlurm | None = None


async def read_blocks(settings: GpuSettings, client: PrefectClient) -> Chosen:
    """Fill in what the blocks say that the settings name.

    Certificates and keys that a block holds become files that only this user can read, in the state folder, since
    Docker's own client and ssh read files.

    Raises:
        BlockError: There is no such block, it cannot be used, or the settings contradict it.
    """
    updates: dict[str, Any] = {}
    nodes: Mapping[str, Mapping[str, str]] = {}
    credentials: Mapping[str, str] = {}
    cluster = await read_cluster(settings, client)
    if cluster is not None:
        if "driver" in settings.model_fields_set and settings.driver == "process":
            raise BlockError(
                f"driver='process' is set beside cluster={settings.cluster!r}, which is for containers: unset one."
            )
        stated: dict[str, Any] = {
            "driver": cluster.driver,
            "docker_host": cluster.endpoint,
            "docker_node_url": cluster.node_url,
        }
        stated["device_hour_price"] = cluster.device_hour_price
        folder = settings.resolved_state_dir / "engine"
        stated |= {_FILES[what]: str(_file(folder, what, text)) for what, text in cluster.credentials.items()}
        for what, value in stated.items():
            if value is not None and what not in settings.model_fields_set:
                updates[what] = Path(value) if what in _FILES.values() else value
        nodes = cluster.labels
    slurm = await _read_slurm(settings, client)
    if slurm is not None:
        updates["driver"] = "slurm"
    storage = await read_storage(settings, client)
    if storage is not None:
        updates["checkpoints"] = storage.location
        credentials = storage.environment
    return Chosen(settings.model_copy(update=updates), nodes, credentials, slurm)


async def _read_slurm(settings: GpuSettings, client: PrefectClient) -> GpuSlurm | None:
    if not settings.slurm:
        if settings.driver == "slurm":
            raise BlockError(
                "driver='slurm' needs a block that says what Slurm is asked for: write it down in YAML (`prefect-gpu "
                "init --kind slurm` makes one), register it (`prefect-gpu register FILE`), and set slurm=NAME."
            )
        return None
    if settings.cluster or ("driver" in settings.model_fields_set and settings.driver != "slurm"):
        other = f"cluster={settings.cluster!r}" if settings.cluster else f"driver={settings.driver!r}"
        raise BlockError(f"{other} is set beside slurm={settings.slurm!r}: a pool has nodes of one kind. Unset one.")
    return await _load(GpuSlurm, settings.slurm.removeprefix("gpu-slurm/"), f"slurm={settings.slurm!r}", client)


async def read_storage(settings: GpuSettings, client: PrefectClient) -> CheckpointStorage | None:
    """The block that says where checkpoints are; None: the settings name none.

    Raises:
        BlockError: There is no such block, or it cannot be used.
    """
    block = checkpoint_block(settings.checkpoints)
    if block is None:
        return None
    return await _load(CheckpointStorage, block, f"checkpoints={settings.checkpoints!r}", client)


async def read_quota(settings: GpuSettings, client: PrefectClient) -> GpuQuota | None:
    """The block that says what owners are promised; None: the settings name none.

    Raises:
        BlockError: There is no such block, or it cannot be used.
    """
    if not settings.quota:
        return None
    return await _load(GpuQuota, settings.quota.removeprefix("gpu-quota/"), f"quota={settings.quota!r}", client)


async def read_cluster(settings: GpuSettings, client: PrefectClient) -> GpuCluster | None:
    """The block that says what the nodes of the pool are; None: the settings name none.

    Raises:
        BlockError: There is no such block, or it cannot be used.
    """
    if not settings.cluster:
        return None
    return await _load(
        GpuCluster, settings.cluster.removeprefix("gpu-cluster/"), f"cluster={settings.cluster!r}", client
    )


async def _load(kind: type[_Found], name: str, setting: str, client: PrefectClient) -> _Found:
    """Read a block. Whatever is wrong with it, none of its content that is secret is shown."""
    slug = kind.get_block_type_slug()
    try:
        document = await client.read_block_document_by_name(name=name, block_type_slug=slug, include_secrets=True)
    except ObjectNotFound:
        raise BlockError(
            f"{setting}: there is no block {slug}/{name} (`prefect block ls` shows those that there are). Write it "
            "down in YAML and register it: `prefect-gpu register FILE`."
        ) from None
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        raise BlockError(
            f"{setting}: the block {slug}/{name} cannot be used: {explain(error)} Correct it, and register it again: "
            "`prefect-gpu register --overwrite FILE`."
        ) from None


def _file(folder: Path, what: str, text: str) -> Path:
    """Where a certificate or keys lie, if need be after it has been written there."""
    if not is_content(text):
        return Path(text).expanduser()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    path = folder / (what if what.startswith("ssh_") else f"{what}.pem")
    temporary = folder / f"{what}.tmp"
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text.strip() + "\n")
    temporary.replace(path)
    return path
