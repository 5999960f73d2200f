"""The `swarm` driver: runs are containers on the nodes of a Docker Swarm.

The Swarm says which nodes there are, which of them are up and take work, and joins a gang by an overlay network. The
containers themselves are made on each node's own Engine and not as services: a service can neither be bound to cores,
nor be given another share while it runs, nor does it tell that its memory limit ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver, ExitReport, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.docker import containers
from prefect_gpu.runtime.drivers.docker.driver import SWEEP_S, DockerDriver, ask_once, short
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError, explained
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made, read_made, read_report
from prefect_gpu.runtime.drivers.docker.nodes import SwarmNode
from prefect_gpu.runtime.drivers.docker.warm import Ahead
from prefect_gpu.scheduling.model.cluster import Node

if TYPE_CHECKING:
    from docker import DockerClient

NETWORK = "prefect-gpu"
_EVERY_S = 2.0
_GOSSIP_PORT = 7946  # at which the nodes of a Swarm talk to each other
_HEARTBEAT_S = 5.0  # by default; a node is given up after three
_PATIENCE_HEARTBEATS = 2  # so that a container that is cut off ends before that


class SwarmDriver(Driver):
    """Starts runs on the nodes of a Swarm.

    Args:
        manager: The Engine of a manager.
        node_url: Endpoint of a node's own Engine, with ``{address}`` and ``{name}`` in it; the label
            ``prefect-gpu.endpoint`` of a node counts instead. Certificates are those of ``manager``.
        default: What containers are made of, where a launch does not say it.
        pool: Name of the pool, for the containers' labels.
        pool_id: As of :class:`.DockerDriver`.
        stated: Labels by node that count more than the node's own.
        ahead: What containers do that are made before their runs; None: none are.
        echo: Called with a run's label and each line of its output; by default the line is printed.
        logger: Told of what went wrong.
    """

    local = False
    contained = True
    files = Path(containers.FOLDER)
    locks = Path(containers.LOCKS)

    def __init__(
        self,
        manager: Endpoint,
        default: ContainerSpec | None = None,
        *,
        node_url: str = "tcp://{address}:2376",
        pool: str = "",
        pool_id: str = "",
        stated: Mapping[str, Mapping[str, str]] | None = None,
        ahead: Ahead | None = None,
        echo: Callable[[str, str], None] | None = None,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._manager = manager
        self._node_url = node_url
        self._default = default
        self._pool, self._pool_id = pool, pool_id
        self._stated = stated or {}
        self._ahead = ahead
        self._echo = echo
        self._logger = logger
        self._client: DockerClient | None = None
        self._drivers: dict[str, DockerDriver] = {}  # of the nodes that are in use
        self._patience_s = _PATIENCE_HEARTBEATS * _HEARTBEAT_S
        self._addresses: dict[str, str] = {}  # by node, whether it is up or not
        self._telling: set[asyncio.Task[None]] = set()
        self._adopting = True  # until then, a container that nobody follows may still be adopted
        self._told: dict[str, str] = {}  # by node: what was last said to be wrong with it

    async def start(self) -> None:
        """Connect to the manager and to all nodes that are up.

        Raises:
            EngineError: The manager cannot be reached, or is none.
        """
        self._client = await asyncio.to_thread(self._manager.connect)
        await asyncio.to_thread(self._set_up)
        await self.nodes()

    async def close(self) -> None:
        await asyncio.gather(*(driver.close() for driver in self._drivers.values()))
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    async def scope(self) -> str | None:
        told = await asyncio.to_thread(ask_once, self._manager)
        return "swarm-" + short(str((told["Swarm"].get("Cluster") or {}).get("ID") or told["ID"]))

    async def sweep(self) -> None:
        await asyncio.gather(*(driver.sweep() for driver in self._drivers.values()))
        self._adopting = False

    async def nodes(self) -> tuple[Node, ...]:
        """The nodes that can be used now. One that has come back is swept first: nothing old goes on there.

        Raises:
            EngineError: The manager cannot be reached.
        """
        known = await asyncio.to_thread(self._ask)
        self._meet(known)
        self._miss(set(self._stated) - {node.name for node in known})
        found = [node for node in known if node.up]
        for name in set(self._drivers) - {node.name for node in found}:
            self._logger.warning("Node %s is gone; so are its runs.", name)
            driver = self._drivers.pop(name)
            await driver.lose(f"Its node {name} is gone: it is down, or cut off from the Swarm's manager.")
            await driver.close()
        admitted = await asyncio.gather(*(self._admit(node) for node in found))
        told = [(node, it.open) for node, it in zip(admitted, found, strict=True) if node is not None]
        told.sort(key=lambda one: one[0].id)
        self.closed_nodes = tuple(node for node, is_open in told if not is_open)
        usable = tuple(node for node, is_open in told if is_open)
        self.away = tuple(sorted({node.name for node in known} - {node.id for node in usable}))
        return usable

    async def watch_nodes(self, tell: Callable[[Sequence[Node]], None]) -> None:
        """See :meth:`.Driver.watch_nodes`."""
        known: tuple[Sequence[Node], Sequence[Node]] | None = None
        for count in itertools.count(1):
            if count % round(SWEEP_S / _EVERY_S) == 0:  # see DockerDriver.watch_nodes
                await self.sweep()
            with contextlib.suppress(EngineError):  # the manager restarts: the nodes are what they were
                nodes = await self.nodes()
                if (nodes, self.closed_nodes) != known:
                    known = nodes, self.closed_nodes
                    tell(nodes)
            await asyncio.sleep(_EVERY_S)

    def meeting_point(self, run_id: str, run_dir: Path, node: str = "") -> tuple[str, int]:
        return containers.meeting_point(run_id, run_dir)

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        name = spec.node or next(iter(self._drivers), "")
        driver = self._drivers.get(name)
        if driver is None:
            failed = EngineError(f"node {name!r} takes no work now")
            failed.away = True
            raise failed
        return await driver.launch(spec)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        made = read_made(run_dir, self._logger.error)
        if made is None:  # noted and torn, or not noted: then nobody has one
            found = [await driver.find(run_id, run_dir) for driver in self._drivers.values()]
            made = next((one for one in found if one is not None), None)
        if made is not None and made.node not in self._drivers:
            return self._gone(run_id, run_dir, made)
        driver = self._drivers.get(made.node if made is not None else "") or next(iter(self._drivers.values()), None)
        if driver is None:
            nowhere = EngineError("No node of the Swarm takes work: nothing can be adopted")
            nowhere.away = True
            raise nowhere
        return await driver.adopt(run_id, run_dir)

    def _meet(self, known: Sequence[SwarmNode]) -> None:
        """Keep all containers up to date on who else there is."""
        addresses = {node.name: node.address for node in known}
        if addresses == self._addresses:
            return
        self._addresses = addresses
        for name, driver in self._drivers.items():  # a node that is out of reach must not keep the others waiting
            telling = asyncio.create_task(driver.set_contacts(self._contacts_of(name)), name=f"contacts of {name}")
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)

    def _contacts_of(self, name: str) -> bytes:
        others = [address for node, address in self._addresses.items() if node != name and address != "0.0.0.0"]
        told = {"addresses": [(address, _GOSSIP_PORT) for address in others], "patience_s": self._patience_s}
        return json.dumps(told).encode()

    def _miss(self, names: set[str]) -> None:
        """Say once of each node that is stated that the Swarm has none of this name: it may be misspelt."""
        for name in sorted(names - set(self._told)):
            self._told[name] = "unknown"
            self._logger.warning("Node %s is stated, but the Swarm has no such node (see `docker node ls`).", name)

    def _gone(self, run_id: str, run_dir: Path, made: Made) -> RunHandle:
        """A launch on a node that is not there: when that comes back, it is swept."""
        lost = ExitReport(None, cause=f"Its node {made.node} is gone.", lost=True)
        return ContainerHandle.of_ended(run_id, made, read_report(run_dir, self._logger.error) or lost)

    async def _admit(self, node: SwarmNode) -> Node | None:
        """Make sure of a node's own Engine. None if the node cannot be used."""
        try:
            node.as_node()  # what its labels say makes sense
            if node.name not in self._drivers:
                driver = await self._connect(node)
                if not self._adopting:  # it comes back, or is new: nothing old may go on there
                    await driver.sweep()
                self._drivers[node.name] = driver
            told = (await self._drivers[node.name].with_gpus(node)).as_node()
            if not node.open:
                await self._drivers[node.name].cool()
        except (EngineError, ValueError) as error:
            if self._told.get(node.name) != str(error):
                self._told[node.name] = str(error)
                self._logger.error("Node %s cannot be used: %s", node.name, error)
            return None
        self._told.pop(node.name, None)
        return told

    async def _connect(self, node: SwarmNode) -> DockerDriver:
        for name in node.ignored:
            self._logger.warning(
                "Node %s gives itself the label %s, which is not believed: let the Swarm's manager give it (`docker "
                "node update --label-add`), or state it in the cluster's block.",
                node.name,
                name,
            )
        url = node.label("endpoint") or self._node_url.format(address=node.address, name=node.name)
        driver = DockerDriver(
            replace(self._manager, url=url),
            self._default,
            name=node.name,
            network=NETWORK,
            pool=self._pool,
            pool_id=self._pool_id,
            contacts=self._contacts_of(node.name),
            ahead=self._ahead,
            echo=self._echo,
            logger=self._logger,
        )
        driver.may_start = lambda: self.may_start()
        await driver.start()
        return driver

    # -- in threads ---------------------------------------------------------------------------------------------------

    def _ask(self) -> list[SwarmNode]:
        assert self._client is not None
        with explained(self._manager, "list its nodes (it must be a manager of a Swarm)"):
            nodes = [SwarmNode.of(told) for told in self._client.api.nodes()]
        return [node.stated(self._stated.get(node.name)) for node in nodes]

    def _set_up(self) -> None:
        assert self._client is not None
        with explained(self._manager, "tell the heartbeat of its nodes (it must be a manager of a Swarm)"):
            dispatcher = self._client.api.inspect_swarm()["Spec"].get("Dispatcher") or {}
        heartbeat_s = dispatcher.get("HeartbeatPeriod", 0) / 1e9 or _HEARTBEAT_S
        self._patience_s = _PATIENCE_HEARTBEATS * heartbeat_s
        with explained(self._manager, f"make the network {NETWORK}"):
            containers.ensure_network(self._client, NETWORK, overlay=True)
