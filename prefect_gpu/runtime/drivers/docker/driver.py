"""The `docker` driver: runs are containers of one Docker Engine, on this machine or on another."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import NotFound

from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import ContainerSpec, Driver, LaunchError, LaunchSpec, RunHandle
from prefect_gpu.runtime.drivers.docker import containers, fencing
from prefect_gpu.runtime.drivers.docker.engine import Endpoint, EngineError, explained
from prefect_gpu.runtime.drivers.docker.handle import ContainerHandle, Made, read_made, read_report, write_made
from prefect_gpu.runtime.drivers.docker.nodes import SwarmNode, node_of_engine
from prefect_gpu.runtime.drivers.docker.probe import Discovery
from prefect_gpu.runtime.drivers.docker.warm import Ahead, Kind, WarmContainers, may_be_warm
from prefect_gpu.runtime.drivers.output import repeat

if TYPE_CHECKING:
    from docker import DockerClient

    from prefect_gpu.scheduling.model.cluster import Node

SWEEP_S = 30.0
_AGAIN_S = 2.0
_NETWORK = "prefect-gpu-local"


class DockerDriver(Driver):
    """Starts runs as containers of a Docker Engine.

    A launch is claimed in its folder before its container is made, and its container has a name that only it can
    have: it starts once, whoever tries. Output and end are kept by the engine while no worker is there.

    Args:
        endpoint: The engine.
        default: What containers are made of, where a launch does not say it.
        name: What the engine's machine is called; by default what it calls itself.
        network: The network in which the instances of a gang meet; by default one of this engine alone.
        pool: Name of the pool, for the containers' labels.
        pool_id: Its id in Prefect: containers of another pool of this name, of another Prefect server, are left alone.
        contacts: Whom the containers must be able to reach: see :mod:`.fencing`. By default, nobody.
        virtual: Labels of virtual devices that count where the engine has none of their names, if it has no GPUs; see
            :mod:`.nodes`.
        stated: Labels by the machine's name that count more than the engine's own.
        ahead: What containers do that are made before their runs; None: none are.
        echo: Called with a run's label and each line of its output; by default the line is printed.
        logger: Told of what went wrong.

    Example:
        >>> image = ContainerSpec("prefecthq/prefect:3-latest")
        >>> driver = DockerDriver(Endpoint(), image, logger=logger)  # doctest: +SKIP
        >>> await driver.start()  # doctest: +SKIP
        >>> report = await (await driver.launch(spec)).wait()  # doctest: +SKIP
    """

    local = False
    contained = True
    files = Path(containers.FOLDER)
    locks = Path(containers.LOCKS)

    def __init__(
        self,
        endpoint: Endpoint,
        default: ContainerSpec | None = None,
        *,
        name: str = "",
        network: str = "",
        pool: str = "",
        pool_id: str = "",
        contacts: bytes = b"",
        virtual: Mapping[str, str] | None = None,
        stated: Mapping[str, Mapping[str, str]] | None = None,
        ahead: Ahead | None = None,
        echo: Callable[[str, str], None] | None = None,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._endpoint = endpoint
        self._default = default
        self._pool = containers.Pool(pool, pool_id)
        self._virtual = dict(virtual or {})
        self._stated = stated or {}
        self._echo = echo or repeat
        self._logger = logger
        self._client: DockerClient | None = None
        self._ahead = ahead
        self._warm: WarmContainers | None = None
        self._node = name
        self._network = network
        self._contacts = contacts
        self._handles: set[ContainerHandle] = set()
        self._discovery: Discovery | None = None
        self._said_root: set[str] = set()  # images of which that was said
        self._ours: set[str] = set()  # names of containers that are being started, or followed

    async def start(self) -> None:
        """Connect.

        Raises:
            EngineError: The engine cannot be reached, or refuses us.
        """
        self._client = await asyncio.to_thread(self._endpoint.connect)
        await asyncio.to_thread(self._set_up)
        self._discover_anew()

    async def close(self) -> None:
        for handle in tuple(self._handles):
            handle.release()
        if self._discovery is not None:
            self._discovery.close()
        if self._warm is not None:
            await asyncio.to_thread(self._warm.close)
        if self._client is not None:
            await asyncio.to_thread(self._client.close)

    async def scope(self) -> str | None:
        told = await asyncio.to_thread(ask_once, self._endpoint)
        return "engine-" + short(str(told["ID"]))

    async def nodes(self) -> Sequence[Node] | None:
        with explained(self._endpoint, "be reached"):
            told = await asyncio.to_thread(self._engine.info)
        node = node_of_engine(told, self._node, self._virtual).stated(self._stated.get(self._node))
        return ((await self.with_gpus(node)).as_node(),)

    async def with_gpus(self, node: SwarmNode) -> SwarmNode:
        """The engine's node with the GPUs that a probe finds, if nobody has stated them; see :class:`.Discovery`.

        Raises:
            ValueError: A label's value makes no sense.
        """
        assert self._discovery is not None, "the driver has not been started"
        return await self._discovery.complete(node)

    def meeting_point(self, run_id: str, run_dir: Path, node: str = "") -> tuple[str, int]:
        return containers.meeting_point(run_id, run_dir)

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        name = spec.label or spec.run_id
        run_dir = _own_folder(spec.run_dir)
        container = containers.container_name(spec.run_id, run_dir)
        self._ours.add(container)
        making = asyncio.ensure_future(asyncio.to_thread(self._claim_and_make, spec, run_dir, container))
        handle = None
        try:
            made = await asyncio.shield(making)
            handle = self._follow(spec.run_id, run_dir, made, name, spec.stream_output, None)
            await handle.begin()
        except (LaunchError, ValueError, OSError) as error:
            failed = (EngineError if isinstance(error, EngineError) else LaunchError)(str(error))
            failed.explains, failed.away = getattr(error, "explains", False), getattr(error, "away", False)
            failed.no_room = isinstance(error, OSError) and error.errno in supervisor.NO_ROOM
            raise failed from error
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(making, handle))
            raise
        finally:
            if handle is None:
                self._ours.discard(container)
        return handle

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        run_dir = _own_folder(run_dir)
        name = containers.container_name(run_id, run_dir)
        self._ours.add(name)  # should this fail, it is tried again, and the container must still be there
        handle = await self._adopt(run_id, run_dir, name)
        if not isinstance(handle, ContainerHandle):
            self._ours.discard(name)
        return handle

    async def _adopt(self, run_id: str, run_dir: Path, name: str) -> RunHandle | None:
        made = await self.find(run_id, run_dir)
        report = read_report(run_dir, self._logger.error)
        if made is None:
            if not await asyncio.to_thread(supervisor.claim, str(run_dir), {"revoked": True}):
                # Whoever claimed it may have made a container, but cannot have started it.
                with explained(self._endpoint, "remove a container"):
                    await asyncio.to_thread(containers.remove, self._engine, name)
            return None
        if report is not None:
            return ContainerHandle.of_ended(run_id, made, report)
        if not await self._has_started(made):
            return None
        handle = self._follow(run_id, run_dir, made, run_id, True, time.time())
        if self._contacts:
            await handle.give(fencing.FILE, self._contacts)  # the worker before us may not have known all
        return handle

    async def find(self, run_id: str, run_dir: Path) -> Made | None:
        """The container of a launch, from its folder or, if that was torn, from the engine; None if none was noted.

        Raises:
            EngineError: It cannot be asked.
        """
        made = read_made(run_dir, self._logger.error)
        if made is not None or not (run_dir / supervisor.PROCESS).exists():
            return made
        with explained(self._endpoint, "look for a container"):
            seen = await asyncio.to_thread(containers.seen, self._engine, containers.container_name(run_id, run_dir))
        return Made(node=self._node, **seen) if seen is not None else None

    def _follow(
        self, run_id: str, run_dir: Path, made: Made, label: str, stream: bool, since: float | None
    ) -> ContainerHandle:
        echo = functools.partial(self._echo, label) if stream else None
        handle = ContainerHandle(run_id, run_dir, made, self._engine, echo, since, self._logger)
        name = containers.container_name(run_id, run_dir)
        self._handles.add(handle)
        self._ours.add(name)

        def over() -> None:
            self._handles.discard(handle)
            self._ours.discard(name)

        handle.when_over(over)
        return handle

    async def _abandon(self, making: asyncio.Future[Made], handle: ContainerHandle | None) -> None:
        """The launch was cancelled: nothing of it may be left."""
        with contextlib.suppress(LaunchError, ValueError):
            made = await making
            if handle is not None:
                await handle.stop(0)
            else:
                await asyncio.to_thread(containers.remove, self._engine, made.container)

    async def _has_started(self, made: Made) -> bool:
        """Whether a container was ever started; one that was not is removed. Waits for an engine that is away."""
        told = False
        while True:
            try:
                return await asyncio.to_thread(self._look, made)
            except EngineError as error:
                if not told:
                    self._logger.warning("%s Waiting for it.", error)
                    told = True
                await asyncio.sleep(_AGAIN_S)

    async def watch_nodes(self, tell: Callable[[Sequence[Node]], None]) -> None:
        """See :meth:`.Driver.watch_nodes`. An engine that was away may have come back with other GPUs.

        It is swept now and then: a worker that led before may have started something in the very moment in which it
        lost the leadership.
        """
        known: Sequence[Node] | None = None
        said = ""
        while True:
            try:
                nodes = await self.nodes()
                if nodes is not None and nodes != known:
                    known = nodes
                    tell(nodes)
                said = ""
            except EngineError:
                self._discover_anew()
            except ValueError as error:
                if said != (said := str(error)):
                    self._logger.error("Node %s stays as it was: %s", self._node, error)
            await asyncio.sleep(SWEEP_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Remove the pool's containers that nobody follows: those of an earlier worker whose runs are settled."""
        try:
            await asyncio.to_thread(self._sweep)
        except EngineError as error:
            self._logger.warning("Old containers could not be removed: %s", error)

    async def set_contacts(self, contacts: bytes) -> None:
        """Tell all containers whom they must be able to reach from now on."""
        self._contacts = contacts
        await asyncio.gather(*(handle.give(fencing.FILE, contacts) for handle in tuple(self._handles)))

    async def lose(self, cause: str) -> None:
        """The engine's machine is gone, and its runs are over for us. What is left of them is removed when it is back.

        Args:
            cause: What their users are told.
        """
        if self._warm is not None:
            self._warm.forget()
        await asyncio.gather(*(handle.lose(cause) for handle in tuple(self._handles)))

    async def cool(self) -> None:
        """Its machine takes no more work: nothing waits there for runs."""
        if self._warm is not None:
            await asyncio.to_thread(self._warm.cool)

    def _discover_anew(self) -> None:
        """Forget what the probe found: the engine was away, and its machine may have been changed."""
        if self._discovery is not None:
            self._discovery.close()
            self._ours.discard(self._discovery.container)
        self._discovery = Discovery(self._engine, self._endpoint, self._node, self._default, self._pool, self._logger)
        self._ours.add(self._discovery.container)

    # -- in threads ---------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        with explained(self._endpoint, "be reached"):
            self._node = self._node or self._engine.info()["Name"]
        if others := sorted(set(self._stated) - {self._node}):
            self._logger.warning(
                "Node %s is stated, but the engine's machine is called %s: the statement is ignored.",
                others[0],
                self._node,
            )
        if not self._network:
            self._network = _NETWORK
            with explained(self._endpoint, f"make the network {_NETWORK}"):
                containers.ensure_network(self._engine, _NETWORK, overlay=False)
        if self._ahead is not None:
            self._warm = WarmContainers(self._engine, self._endpoint, self._node, self._pool, self._ahead, self._logger)

    def _sweep(self) -> None:
        if self._warm is not None:
            self._warm.check()
        with explained(self._endpoint, "remove old containers"):
            for name in containers.leftovers(self._engine, self._pool):
                if name not in self._ours and not (self._warm is not None and self._warm.holds(name)):
                    if not self.may_start():  # we were frozen, and this is what the next leader has started
                        return
                    self._logger.warning("Container %s belongs to no run any more and is removed.", name)
                    containers.remove(self._engine, name)

    def _claim_and_make(self, spec: LaunchSpec, run_dir: Path, container: str) -> Made:
        if not supervisor.claim(str(run_dir), {"container": container}):
            raise LaunchError("the launch was revoked, or has been started already")
        return self._make(spec, run_dir)

    def _make(self, spec: LaunchSpec, run_dir: Path) -> Made:
        """Start a container: one that waits for such a launch, or else a new one."""
        how = spec.container or self._default
        if how is None:
            raise LaunchError("no image is given for it: set `image`")
        with explained(self._endpoint, f"make a container of {how.image}"):
            image = containers.ensure_image(self._engine, how.image, how.pull)
            self._warn_of_root(how, image)
        if self._warm is None or self._ahead is None or not may_be_warm(spec, how):
            return self._make_cold(spec, how, run_dir, image)
        kind = Kind.of(spec, how, image, self._ahead)
        name = containers.container_name(spec.run_id, run_dir)
        made = self._warm.launch(kind, spec, name, lambda made: self._note(made, run_dir), self._contacts)
        made = made or self._make_cold(spec, how, run_dir, image)
        self._warm.keep(kind)
        return made

    def _warn_of_root(self, how: ContainerSpec, image: containers.Image) -> None:
        """Once of each image, on an Engine whose root is the node's."""
        user = (how.user or image.user).partition(":")[0]
        if user not in ("", "0", "root") or how.image in self._said_root:
            return
        options = self._engine.info().get("SecurityOptions") or ()
        self._said_root.add(how.image)
        if not any(name in option for option in options for name in ("name=userns", "name=rootless")):
            self._logger.warning(
                "Runs of the image %s are root in their containers. Give it a USER, or let all runs be one user, such "
                "as 1000:1000: set PREFECT_INTEGRATIONS_GPU_CONTAINER_USER.",
                how.image,
            )

    def _make_cold(self, spec: LaunchSpec, how: ContainerSpec, run_dir: Path, image: containers.Image) -> Made:
        client = self._engine
        name, mark = containers.container_name(spec.run_id, run_dir), f"prefect-gpu-{secrets.token_hex(8)}"
        with explained(self._endpoint, f"make a container of {how.image}"):
            container = containers.create(
                client, spec, how, name, mark, self._pool, self._network, self._contacts, image
            )
        made = Made(container, self._node, mark, len(spec.cpus))
        try:
            self._note(made, run_dir)
            with explained(self._endpoint, f"start a container of {how.image}"):
                client.api.start(made.container)
        except BaseException:
            with contextlib.suppress(Exception):  # the engine is away, which is the reason: it is swept later
                containers.remove(client, made.container)
            raise
        return made

    def _note(self, made: Made, run_dir: Path) -> None:
        """Write down a container that is about to begin, if it still may."""
        supervisor.reserve(str(run_dir / supervisor.EXIT))
        write_made(run_dir, made)
        if not self.may_start():  # the image was pulled for minutes, or we were frozen
            raise LaunchError("another worker may lead by now")

    def _look(self, made: Made) -> bool:
        with explained(self._endpoint, "tell how a container ended"):
            try:
                state = self._engine.api.inspect_container(made.container)["State"]
                begun = state["Status"] != "created"
                if made.warm:
                    begun = containers.has_begun(self._engine, made.container)
                    if not begun and state["Running"]:
                        # The worker before us noted it, and died before, or as, it told it to begin.
                        containers.begin(self._engine, made.container)
                        begun = True
                if begun:
                    return True
            except NotFound:
                return True  # it may have been: whoever looks at its end will find that nobody saw it
            containers.remove(self._engine, made.container)
            return False

    @property
    def _engine(self) -> DockerClient:
        if self._client is None:
            raise EngineError("The driver has not been started")
        return self._client


def ask_once(endpoint: Endpoint) -> dict[str, Any]:
    """What an engine says of itself.

    Raises:
        EngineError: It cannot be reached, or refuses us.
    """
    client = endpoint.connect()
    try:
        with explained(endpoint, "be reached"):
            return dict(client.info())
    finally:
        client.close()


def short(name: str) -> str:
    """A part of an engine's or a Swarm's id that is enough to know it by; some versions write it with colons."""
    return re.sub(r"[^A-Za-z0-9]+", "", name)[:12]


def _own_folder(run_dir: Path) -> Path:
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
