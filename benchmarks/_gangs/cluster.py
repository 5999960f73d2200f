"""The nodes, and who starts a gang's instances on them: forks of a warm interpreter, or containers of a Swarm."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks._gangs.pool import CORES, CORES_ASKED, PLACING_ALONE, Gang, GangPool, NamespaceDriver, Outcome, logger
from benchmarks._host.pool import ROOT, virtual_node
from prefect_gpu.lab.docker_nodes import Lab, debian_image
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver
from prefect_gpu.runtime.drivers.docker import Endpoint, SwarmDriver
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Node
from prefect_gpu.scheduling.profiles import Profile

_CONTAINER_CORES = 2  # this machine's, which a node's Engine takes for its own
_T = TypeVar("_T")
_IMAGE = "prefect-gpu-benchmark:1"


@dataclass(frozen=True)
class Shape:
    """How many nodes, in how many racks, with how many devices each; bandwidths in bytes per second.

    Attributes:
        link_bps: Of each node's cable, in each direction.
        uplink_bps: Of the cable between a rack and the first one.
    """

    nodes: int
    racks: int
    devices: int
    link_bps: float
    uplink_bps: float = 0.0


@dataclass
class Cluster:
    """The nodes of a lab.

    Attributes:
        nodes: As the scheduler has them.
        cores_asked: By each instance; as many fit a node as it has devices, or more.
    """

    lab: Lab
    nodes: tuple[Node, ...]
    cores_asked: int
    make_driver: Callable[[], Driver]

    async def run(self, gangs: Sequence[Gang], profile: Profile) -> list[Outcome]:
        """Run gangs under a profile, in a pool of their own; see :meth:`.GangPool.run`."""
        async with self.pool(profile) as pool:
            return await pool.run(gangs)

    @contextlib.asynccontextmanager
    async def pool(self, profile: Profile, *, stops: bool = False) -> AsyncIterator[GangPool]:
        """A pool under a profile.

        Args:
            stops: Whether gangs that say so may be stopped at a checkpoint, to carry on later.
        """
        abilities = replace(PLACING_ALONE, preemption=Preemption.GRACEFUL) if stops else PLACING_ALONE
        driver = self.make_driver()
        with tempfile.TemporaryDirectory(dir=_shared(self.lab)) as folder:
            pool = GangPool(
                Path(folder),
                self.cores_asked,
                self.nodes,
                make_driver=lambda: driver,
                profile=lambda: profile,
                abilities=abilities,
                channel_host=self.lab.gateway,
            )
            async with pool:
                yield pool


def add_options(parser: argparse.ArgumentParser, prefix: str, subnet: str) -> None:
    """What is to be said of the lab, with these defaults."""
    parser.add_argument("--folder", type=Path, default=Path(f"/var/tmp/{prefix}-lab"), help="for the nodes' data")
    parser.add_argument("--prefix", default=prefix, help=f"of the nodes' names (default: {prefix})")
    parser.add_argument("--subnet", default=subnet, help=f"first numbers of their addresses (default: {subnet})")
    parser.add_argument("--verbose", action="store_true", help="say what is done meanwhile")


def in_lab(
    options: argparse.Namespace, shape: Shape, work: Callable[[Cluster], Awaitable[_T]], *, containers: bool = False
) -> _T:
    """Set up the lab that the options name, do the work on its cluster, and tear it down.

    Args:
        containers: Whether each instance is a container of a Swarm.
    """
    logging.basicConfig(level=logging.INFO if options.verbose else logging.ERROR, stream=sys.stderr)
    lab = lab_of(shape, options.folder, options.prefix, options.subnet, containers=containers)

    async def everything() -> _T:
        async with started(lab, shape, containers=containers) as cluster:
            return await work(cluster)

    with lab:
        return asyncio.run(everything())


def lab_of(shape: Shape, folder: Path, prefix: str, subnet: str, *, containers: bool) -> Lab:
    """The machines, not yet started.

    Args:
        containers: Whether each has a Docker Engine.
    """
    bandwidths = {"link_bps": shape.link_bps, "uplink_bps": shape.uplink_bps}
    return Lab(folder, shape.nodes, prefix, subnet, racks=shape.racks, engines=containers, **bandwidths)


@contextlib.asynccontextmanager
async def started(lab: Lab, shape: Shape, *, containers: bool) -> AsyncIterator[Cluster]:
    """The cluster on a lab that runs."""
    _shared(lab).mkdir(exist_ok=True)
    if containers:
        yield Cluster(lab, nodes_of(lab, shape, _CONTAINER_CORES), 1, _swarm(lab, shape))
        return
    async with NamespaceDriver(lab) as driver:
        yield Cluster(lab, nodes_of(lab, shape), CORES_ASKED, lambda: driver)


def nodes_of(lab: Lab, shape: Shape, cores: int = CORES) -> tuple[Node, ...]:
    """The lab's nodes, with virtual devices and the bandwidths that their links were given.

    Their cores are there for the rules that look at cores: on nodes without any, those of Kubernetes would see no
    difference between an empty node and a full one.
    """
    return tuple(
        replace(
            virtual_node(shape.devices, node.name, cpus=range(cores)),
            rack=node.rack,
            network_bps=shape.link_bps,
            uplink_bps=shape.uplink_bps,
        )
        for node in lab.nodes
    )


def _swarm(lab: Lab, shape: Shape) -> Callable[[], Driver]:
    """Make the lab's Engines a Swarm whose containers have this machine's Python, read-only."""
    for node in lab.nodes:
        client = Endpoint(node.url).connect()
        debian_image(client, _IMAGE, lab.folder / "debian.tar")
        client.close()
    lab.join_swarm({node.name: {"prefect-gpu.virtual-devices": str(shape.devices)} for node in lab.nodes})
    read_only = {sys.prefix, sys.base_prefix, str(ROOT)}
    volumes = (*(f"{path}:{path}:ro" for path in sorted(read_only)), f"{_shared(lab)}:{_shared(lab)}")
    default = ContainerSpec(_IMAGE, pull="never", volumes=volumes)
    manager = Endpoint(lab.nodes[0].url)
    return lambda: SwarmDriver(manager, default, pool="network", echo=lambda label, line: None, logger=logger)


def _shared(lab: Lab) -> Path:
    return lab.folder / "shared"
