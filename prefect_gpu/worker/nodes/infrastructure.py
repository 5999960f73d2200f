"""Where a worker starts its runs: as processes of this machine, as containers, or on nodes that Slurm lends."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prefect.settings import get_current_settings

from prefect_gpu.blocks import GpuSlurm
from prefect_gpu.runtime.devices.locks import Locks
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch.inherited import inherited
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.settings import GpuSettings
from prefect_gpu.worker.from_blocks import Chosen
from prefect_gpu.worker.nodes.own_node import claim_node
from prefect_gpu.worker.nodes.reach import tunnel_of
from prefect_gpu.worker.nodes.warm import AFTER_FORK, BEFOREHAND, LABELS_OF_RUNS, PREFECT_MODULES, completed
from prefect_gpu.worker.setup_error import SetupError

_OF_MODULES = ("PATH", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH", "PYTHONPATH")
"""What `module load` changes: on a node where it was called, its own values count and not the worker's."""
_OF_NODES = (
    *_OF_MODULES,
    *("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TMP", "TEMP"),
    *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "LD_PRELOAD", "CC", "CXX", "HF_HOME", "HF_HUB_CACHE"),
    *("HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "MPLCONFIGDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "WEBSOCKET_CLIENT_CA_BUNDLE"),
    *("PREFECT_HOME", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH", "PREFECT_LOCAL_STORAGE_PATH"),
    *("PREFECT_RESULTS_LOCAL_STORAGE_PATH", "PREFECT_LOGGING_SETTINGS_PATH", "PREFECT_API_SSL_CERT_FILE"),
    "PREFECT_INTEGRATIONS_GPU_STATE_DIR",
)
"""What is of one machine. Where a node shares no files with the worker, it is its own that counts."""
_NO_CREDENTIALS = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_EC2_METADATA_DISABLED", "AWS_USE_*")


@dataclass(frozen=True)
class Infrastructure:
    """A driver, and the nodes that are known before it starts: others than this machine tell of themselves."""

    driver: Driver
    nodes: tuple[Node, ...] = ()


def infrastructure_of(
    pool: str,
    settings: GpuSettings,
    locks: Locks,
    printer: Callable[..., None],
    logger: logging.Logger,
    chosen: Chosen | None = None,
    umask: int = -1,
    pool_id: str = "",
) -> Infrastructure:
    """What the settings ask for.

    Args:
        chosen: What blocks say beside the settings.
        umask: That of runs which are processes; -1: the worker's own.
        pool_id: The pool's, which no other pool has.

    Raises:
        SetupError: Something that containers need is not set. The message names it.
    """
    if settings.driver == "process":
        _say_withheld(settings, logger)
        driver = ProcessDriver(
            warm=settings.warm_start,
            preload=[*PREFECT_MODULES, *completed(settings.preload)],
            after_fork=AFTER_FORK,
            environ=environment_of_runs(os.environ, settings),
            umask=umask,
            echo=None,
            logger=logger,
        )
        return Infrastructure(driver, (claim_node(pool, settings, locks, printer, logger),))
    if settings.driver == "slurm":
        assert chosen is not None and chosen.slurm is not None, "the block is read before"
        _say_withheld(settings, logger)
        return Infrastructure(slurm_driver(pool, pool_id, settings, chosen.slurm, umask, logger))
    stated = chosen.nodes if chosen is not None else None
    if settings.advertise is None:
        raise SetupError(
            f"advertise is not set, but driver={settings.driver!r} needs it: the address of this machine at which "
            "containers reach it, such as 172.17.0.1 for an engine on this machine."
        )
    # Only who uses containers needs their SDK.
    from prefect_gpu.runtime.drivers.docker import Ahead, DockerDriver, Endpoint, SwarmDriver

    files = {
        "ca": settings.docker_ca,
        "certificate": settings.docker_certificate,
        "key": settings.docker_key,
        "ssh_key": settings.docker_ssh_key,
        "ssh_known_hosts": settings.docker_ssh_known_hosts,
    }
    told: dict[str, Any] = {name: str(path) for name, path in files.items() if path is not None}
    if settings.docker_host:
        told["url"] = settings.docker_host
    endpoint = Endpoint(**told, plain_tcp=settings.docker_plain_tcp)
    default = ContainerSpec(settings.image) if settings.image else None
    modules = (*PREFECT_MODULES, *completed(settings.preload))
    ahead = Ahead(modules, AFTER_FORK, BEFOREHAND, LABELS_OF_RUNS) if settings.warm_start else None
    if settings.driver == "docker":
        return Infrastructure(
            DockerDriver(
                endpoint,
                default,
                pool=pool,
                pool_id=pool_id,
                virtual=virtual_labels(settings),
                stated=stated,
                ahead=ahead,
                logger=logger,
            )
        )
    return Infrastructure(
        SwarmDriver(
            endpoint,
            default,
            node_url=settings.docker_node_url,
            pool=pool,
            pool_id=pool_id,
            stated=stated,
            ahead=ahead,
            logger=logger,
        )
    )


def slurm_driver(
    pool: str, pool_id: str, settings: GpuSettings, block: GpuSlurm, umask: int, logger: logging.Logger
) -> Driver:
    """The driver for what a block says.

    Raises:
        SetupError: Something that Slurm's nodes need is not set. The message names it.
    """
    of_worker = block.tunnel is not None and block.tunnel.opened_by == "worker"
    if settings.advertise is None and not of_worker:
        whose = f"the tunnel's end ({block.tunnel.via})" if block.tunnel is not None else "Slurm's nodes"
        raise SetupError(
            f"advertise is not set, but driver='slurm' needs it: the address of this machine at which {whose} "
            "reach it, such as 10.0.0.1. Set channel_host to that address, too."
        )
    if not block.shared_folder:
        _needs_without_files(settings, block, logger)
    # Only who uses Slurm needs what talks to it.
    from prefect_gpu.runtime.drivers.slurm import words
    from prefect_gpu.runtime.drivers.slurm.driver import SlurmDriver
    from prefect_gpu.runtime.drivers.slurm.pilots import prefix_of

    agents = words.Settings(
        url="",
        warm=settings.warm_start,
        preload=(*PREFECT_MODULES, *completed(settings.preload)),
        after_fork=AFTER_FORK,
        environ=environment_of_runs(os.environ, settings, here=block.shared_folder),
        umask=umask,
        alone_s=block.idle_seconds,
        python=sys.executable,
        own=_OF_NODES if not block.shared_folder else _OF_MODULES if block.setup else (),
    )
    return SlurmDriver(
        block.client(),
        block.plan(sys.executable),
        settings.resolved_state_dir / "slurm" / pool,
        prefix_of(pool, pool_id),
        agents=agents,
        host=settings.channel_host,
        port=settings.slurm_port,
        advertise=None if of_worker else settings.advertise,
        tunnel=tunnel_of(block.tunnel, settings, get_current_settings().api.url) if block.tunnel is not None else None,
        logger=logger,
    )


def _needs_without_files(settings: GpuSettings, block: GpuSlurm, logger: logging.Logger) -> None:
    """Complain of what must be set where nodes see nothing of the worker's files.

    Raises:
        SetupError: Nodes would not find the next worker. The message names the setting.
    """
    by_node = block.tunnel is None or block.tunnel.opened_by == "node"
    if by_node and not settings.slurm_port:
        raise SetupError(
            "slurm_port is not set, but shared_folder: false needs it: nodes that see no file of the worker's find the "
            "next one only at the same port. Set PREFECT_INTEGRATIONS_GPU_SLURM_PORT=4290, or another free one."
        )
    if by_node and block.tunnel is not None and not settings.channel_port:
        raise SetupError(
            "channel_port is not set, but shared_folder: false with a tunnel needs it: it leads to the next worker "
            "only at the same port. Set PREFECT_INTEGRATIONS_GPU_CHANNEL_PORT=4291, or another free one."
        )
    if not keeps_checkpoints(settings):
        logger.warning(
            "Checkpoints are kept in a folder of this machine, which Slurm's nodes do not see (shared_folder: false): "
            "runs that are preemptible are refused. Set PREFECT_INTEGRATIONS_GPU_CHECKPOINTS=s3://BUCKET/PREFIX."
        )


def keeps_checkpoints(settings: GpuSettings) -> bool:
    """Whether checkpoints are where every machine reaches them."""
    return (settings.checkpoints or "").startswith("s3://")


def environment_of_runs(environ: Mapping[str, str], settings: GpuSettings, here: bool = True) -> dict[str, str]:
    """What a run that is a process is told of the worker's environment, and of its Prefect settings.

    Args:
        environ: The worker's.
        here: Whether it sees the worker's files; else what is of this machine means nothing to it.
    """
    prefect = get_current_settings().to_environment_variables(exclude_unset=True)
    told = inherited({**environ, **prefect}, passed_patterns(settings))
    return told if here else without_this_machine(told, settings)


def without_this_machine(environ: Mapping[str, str], settings: GpuSettings) -> dict[str, str]:
    """An environment without what is of this machine; what the operator lets pass by name stays."""
    return {
        name: value for name, value in environ.items() if name not in _OF_NODES or name in settings.pass_environment
    }


def passed_patterns(settings: GpuSettings) -> list[str]:
    """Names of variables that runs are told beside those that all training needs."""
    # Without a block and a role, the credentials of checkpoints in S3 are those of the environment.
    of_s3 = _NO_CREDENTIALS if settings.checkpoints_role else ("AWS_*",)
    return [*settings.pass_environment, *(of_s3 if keeps_checkpoints(settings) else ())]


def _say_withheld(settings: GpuSettings, logger: logging.Logger) -> None:
    withheld = sorted(
        name
        for name in os.environ.keys() - environment_of_runs(os.environ, settings).keys()
        if not name.startswith("PREFECT_") and name not in ("_", "PWD", "OLDPWD", "SHLVL")  # which nobody misses
    )
    if withheld:
        logger.info(
            "Runs are not told these environment variables of the worker: %s. To pass some, name them in "
            "PREFECT_INTEGRATIONS_GPU_PASS_ENVIRONMENT.",
            ", ".join(withheld),
        )


def virtual_labels(settings: GpuSettings) -> dict[str, str]:
    """What an Engine's labels would say of virtual devices, for one that does not say it."""
    return {
        "prefect-gpu.virtual-devices": str(settings.virtual_devices),
        "prefect-gpu.virtual-device-memory": settings.virtual_device_memory,
    }
