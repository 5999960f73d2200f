"""The `slurm` driver: runs are processes on nodes that Slurm lends, for a while and as they are needed.

Slurm stays the master of nodes, accounts, limits and time. What is lent is an allocation, with an agent of ours on each
of its nodes; to the scheduler each is a node that comes, and goes. The worker, its runs and the agents share the state
folder: it lies in a file system that the nodes see at the same path.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Collection, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime import files
from prefect_gpu.runtime.drivers import supervisor
from prefect_gpu.runtime.drivers.base import Coming, Driver, ExitReport, LaunchError, LaunchSpec, RunHandle, Wanted
from prefect_gpu.runtime.drivers.output import tail_lines
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.client import SlurmAway, SlurmClient
from prefect_gpu.runtime.drivers.slurm.handle import EndedHandle, SlurmHandle, ended_with, lost
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub
from prefect_gpu.runtime.drivers.slurm.nodes import Lent, node_of
from prefect_gpu.runtime.drivers.slurm.outlook import coming
from prefect_gpu.runtime.drivers.slurm.pilots import Pilot, Pilots
from prefect_gpu.runtime.drivers.slurm.place import facts_of, take, taken_by
from prefect_gpu.runtime.drivers.slurm.reach import Reach
from prefect_gpu.runtime.drivers.slurm.shapes import Plan
from prefect_gpu.runtime.drivers.slurm.supply import Supply
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.scheduling.model.cluster import Node

_MARGIN_S = 2.0  # Slurm counts whole seconds, and ends nothing later
_CLUSTER = "cluster"  # a file: which one it is, for a time when nobody could say so
_BALANCE_S = 1.0  # from one decision on allocations to the next, if nothing happens
_LAUNCH_S = 60.0  # then the run is started elsewhere
_UNHEARD_S = 15.0  # a node whose agent is cut off for so long takes no more work


class SlurmDriver(Driver):
    """Starts runs on nodes that Slurm lends.

    Args:
        client: The cluster.
        plan: Which allocations there may be.
        folder: Of the pool's allocations, in the state folder.
        prefix: See :func:`.pilots.prefix_of`.
        agents: How agents start runs; their worker's address is filled in.
        host, port, advertise: Where agents reach this worker; see :class:`.ChannelServer`.
        echo: Called with a run's label and each line of its output; by default the line is printed.
        tunnel: How nodes reach this worker where they cannot connect to it; its first two targets are filled in.
        comes_back_s: For so long agents of an earlier worker are waited for.
        logger: Told of what went wrong.
    """

    local = False
    elastic = True
    locks: Path

    def __init__(
        self,
        client: SlurmClient,
        plan: Plan,
        folder: Path,
        prefix: str,
        *,
        agents: words.Settings,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        echo: Callable[[str, str], None] | None = None,
        tunnel: words.Tunnel | None = None,
        comes_back_s: float = 10.0,
        logger: Logger | LoggerAdapter[Any],
    ) -> None:
        self._client, self._plan, self._folder = client, plan, folder.absolute()
        self.locks = self._folder / "locks"
        self._settings = agents
        self._echo = echo or (lambda label, line: print(line))
        self._logger = logger
        self._pilots = Pilots(client, self._folder, prefix, logger, ports=3 if tunnel else 0)
        self._supply = Supply(client, plan, self._pilots, logger)
        self._reach = Reach(client, tunnel, logger)
        self._hub = AgentHub(self._heard, host=host, port=port, advertise=advertise, logger=logger)
        self._lent: dict[str, Lent] = {}  # by agent
        self._describing: dict[str, asyncio.Task[None]] = {}
        self._handles: dict[str, SlurmHandle] = {}  # by the launch's folder
        self._changed = asyncio.Event()
        self._comes_back_s = comes_back_s

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the allocations of an earlier worker, and let their agents connect.

        While slurmctld is away, nothing is asked for, and what runs is taken over all the same.

        Raises:
            OSError: The address for agents is in use, or is not this machine's.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.locks.mkdir(exist_ok=True)
        await asyncio.to_thread(self._pilots.load)
        await self._hub.start()
        tunnel = self._reach.begin(self._hub.url, self.channel())
        settings = dataclasses.replace(self._settings, url=self._hub.url, tunnel=tunnel)
        words.write_secret(self._folder / words.AGENTS, dataclasses.asdict(settings))
        await self._look()
        self._hub.open()
        with contextlib.suppress(asyncio.TimeoutError):  # who is cut off is a node later
            await asyncio.wait_for(self._all_described(), self._comes_back_s)

    async def close(self) -> None:
        for task in self._describing.values():
            task.cancel()
        for handle in tuple(self._handles.values()):
            handle.release()
        await self._hub.close()
        await self._reach.close()

    async def scope(self) -> str | None:
        noted = self._folder / _CLUSTER
        try:
            name = await self._client.cluster_name()
        except SlurmAway:
            if not noted.exists():
                raise
            return noted.read_text()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        noted.write_text(f"slurm-{name}")
        return f"slurm-{name}"

    async def nodes(self) -> Sequence[Node]:
        open_nodes, self.closed_nodes = [], ()
        now = time.monotonic()
        for lent in sorted(self._lent.values(), key=lambda one: one.node.id):
            lent.learn_end()
            if self._hub.connected(lent.agent):
                lent.heard_at = now
            takes_work = not (lent.ending or lent.pilot.given_back) and now - lent.heard_at < _UNHEARD_S
            takes_work = takes_work and lent.pilot.job is not None and lent.pilot.job.runs
            takes_work = takes_work and not (self._plan.one_run and lent.pilot.record.run)
            if takes_work:
                open_nodes.append(lent.node)
            else:
                self.closed_nodes = (*self.closed_nodes, lent.node)
        return tuple(open_nodes)

    async def watch_nodes(self, tell: Callable[[Sequence[Node]], None]) -> None:
        """See :meth:`.Driver.watch_nodes`. Allocations are asked for, and given back, as the queue needs them.

        Whoever is given back takes no work from that moment on: between the decision and the word to the scheduler,
        nothing else happens.
        """
        known: tuple[Sequence[Node], Sequence[Node]] | None = None
        while True:
            await self._look()
            if self.may_start():
                decision = self._supply.decide(self.demand(), self._is_busy)
                nodes = await self.nodes()
                if (nodes, self.closed_nodes) != known:
                    known = nodes, self.closed_nodes
                    tell(nodes)
                await self._supply.carry_out(decision)
                self._admit_all()
            self._changed.clear()
            await self._change()

    async def _change(self) -> None:
        """Wait until something has changed, for a moment at most.

        ``wait_for`` would forget that it was cancelled if that comes with the change (Python before 3.12).
        """
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((changing,), timeout=_BALANCE_S)
        finally:
            changing.cancel()

    def coming(self, run: Wanted) -> Coming | None:
        return coming(run, self._supply, bool(self._describing), self._reach.trouble)

    def _is_busy(self, pilot: Pilot, busy: Collection[str]) -> bool:
        """Whether something runs in an allocation, or is about to, of which these nodes have something."""
        nodes = {lent.node.id for lent in self._lent.values() if lent.pilot is pilot}
        return not nodes.isdisjoint(busy) or any(handle.node in nodes for handle in self._handles.values())

    # -- allocations ----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        for pilot, why in await self._supply.look():
            self._lose(pilot, why)
        self._admit_all()
        await self._reach.keep(self._pilots.all.values())

    def _admit_all(self) -> None:
        for pilot in self._pilots.all.values():
            self._admit(pilot)

    def _admit(self, pilot: Pilot) -> None:
        """Let an allocation's agents connect, and ask them what they have."""
        for rank in range(pilot.record.nodes):
            agent = words.agent_id(pilot.name, rank)
            if agent not in self._describing and agent not in self._lent:
                self._hub.admit(agent, pilot.record.token)
                self._describing[agent] = asyncio.create_task(self._describe(pilot, agent), name=f"agent {agent}")

    async def _describe(self, pilot: Pilot, agent: str) -> None:
        try:
            told = await self._hub.ask(agent, words.DESCRIBE)
            self._pilots.began(pilot)
            self._reach.works()
            node = node_of(f"{told['host']}.{told['job']}", told)
            for finding in told["findings"]:
                self._logger.info("Node %s: %s", node.id, finding)
            if not node.devices and self._plan_devices(pilot):
                self._logger.error(
                    "Node %s has no GPU that can be used, and its shape %r asks for some.", node.id, pilot.record.shape
                )
            self._lent[agent] = Lent(node, pilot, agent, bool(told["adjustable"]), time.monotonic())
        except LaunchError as error:
            self._logger.debug("Agent %s: %s", agent, error)
        finally:
            self._describing.pop(agent, None)
            self._changed.set()

    def _plan_devices(self, pilot: Pilot) -> int:
        return next((shape.devices for shape in self._plan.shapes if shape.name == pilot.record.shape), 0)

    async def _all_described(self) -> None:
        running = [
            task
            for agent, task in self._describing.items()
            if (pilot := self._pilots.all.get(agent.rpartition(".")[0]))
            and (pilot.job is None or pilot.job.runs)  # None: Slurm has not been heard of yet
        ]
        await asyncio.gather(*(asyncio.shield(task) for task in running))

    def _lose(self, pilot: Pilot, why: str) -> None:
        """An allocation is over, and so is whatever ran in it."""
        agents = {words.agent_id(pilot.name, rank) for rank in range(pilot.record.nodes)}
        for agent in agents:
            self._hub.drop(agent)
            self._lent.pop(agent, None)
        for handle in [one for one in self._handles.values() if one.agent in agents]:
            handle.lose(why)
        if not pilot.given_back:
            self._logger.warning("%s", why)
        self._changed.set()

    def _heard(self, agent: str, kind: str, data: dict[str, Any]) -> None:
        if kind == words.EXIT and (handle := self._handles.get(str(data.pop("run_dir", "")))) is not None:
            report: ExitReport = files.build(ExitReport, data)
            handle.exited(dataclasses.replace(report, tail=tail_lines(handle.folder / supervisor.OUTPUT)))
        elif kind == words.FAULTS:
            self.on_faults([files.build(Fault, one) for one in data["faults"]])
        elif kind == words.ENDING and (lent := self._lent.get(agent)) is not None:
            lent.ending = True
            self._changed.set()

    # -- runs -----------------------------------------------------------------------------------------------------

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        name, run_dir = spec.label or spec.run_id, _own_folder(spec.run_dir)
        lent = self._lent_node(spec.node)
        if lent is None or (self._plan.one_run and not self._dedicate(lent, spec)):
            failed = LaunchError(f"{name} could not be started: node {spec.node!r} takes no work now")
            failed.away = True
            raise failed
        if not await asyncio.to_thread(take, run_dir, lent.node.id):
            raise LaunchError(f"{name} could not be started: the launch was revoked, or has been started already")
        launching = asyncio.ensure_future(self._launch(lent, spec, run_dir))
        try:
            told = await asyncio.shield(launching)
        except asyncio.CancelledError:
            await asyncio.shield(self._abandon(launching, lent, run_dir))
            raise
        return self._follow(spec.run_id, run_dir, lent.node.id, lent, told, 0, name, spec.stream_output)

    def _dedicate(self, lent: Lent, spec: LaunchSpec) -> bool:
        """Where each run has a job of its own: let this one be the run's, and take no other."""
        dedicated = self._pilots.dedicate(lent.pilot, spec.run_id.partition(".")[0])  # an instance's is RUN.RANK
        self._changed.set()
        return dedicated

    async def _launch(self, lent: Lent, spec: LaunchSpec, run_dir: Path) -> dict[str, Any]:
        spec = dataclasses.replace(spec, env=self._reach.environment(spec.env, lent.pilot.record))
        words.write_secret(run_dir / words.SPEC, words.spec_as_json(spec))
        asking = asyncio.ensure_future(self._hub.ask(lent.agent, words.LAUNCH, run_dir=str(run_dir)))
        try:
            done, _ = await asyncio.wait((asking,), timeout=_LAUNCH_S)
            if not done and await asyncio.to_thread(supervisor.claim, str(run_dir), {"revoked": True}):
                asking.cancel()
                failed = LaunchError(f"the agent of node {lent.node.id} has not answered for {_LAUNCH_S:.0f} s")
                failed.away = True  # and it will never start there now
                raise failed
            return await asking
        finally:
            (run_dir / words.SPEC).unlink(missing_ok=True)

    async def _abandon(self, launching: asyncio.Future[dict[str, Any]], lent: Lent, run_dir: Path) -> None:
        with contextlib.suppress(LaunchError):
            await launching
            await self._hub.ask(lent.agent, words.STOP, run_dir=str(run_dir), grace_seconds=0)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        run_dir = _own_folder(run_dir)
        if await asyncio.to_thread(take, run_dir, ""):
            return None  # nobody may start it any more
        node = taken_by(run_dir)
        if not node:
            return None
        if (report := ended_with(run_dir, self._logger.error)) is not None:
            return EndedHandle(run_id, node, report, **facts_of(run_dir))
        lent = self._lent_node(node)
        connecting = [task for agent, task in self._describing.items() if self._runs_in(agent, node)]
        if lent is None and connecting:
            await asyncio.wait(connecting, timeout=self._comes_back_s)
            lent = self._lent_node(node)
            if lent is None and self._runs_in_any(node):
                raise LaunchError(f"The agent of node {node} is not connected")
        if lent is None:
            # Its allocation is over. Nothing that had not begun by then ever will.
            if not (run_dir / supervisor.PROCESS).exists():
                await asyncio.to_thread(supervisor.claim, str(run_dir), {"revoked": True})
                return None
            return EndedHandle(run_id, node, lost(f"The allocation of its node {node} has ended."), **facts_of(run_dir))
        told = await self._hub.ask(lent.agent, words.ADOPT, run_id=run_id, run_dir=str(run_dir))
        if not told:
            return None
        output = run_dir / supervisor.OUTPUT
        offset = output.stat().st_size if output.exists() else 0
        return self._follow(run_id, run_dir, node, lent, told, offset, run_id, True)

    def _runs_in_any(self, node: str) -> bool:
        return any(pilot.record.job == node.rpartition(".")[2] for pilot in self._pilots.all.values())

    def _runs_in(self, agent: str, node: str) -> bool:
        pilot = self._pilots.all.get(agent.rpartition(".")[0])
        return pilot is not None and pilot.record.job == node.rpartition(".")[2]

    def _lent_node(self, name: str) -> Lent | None:
        """The node of that name; with an empty one, any."""
        return next((lent for lent in self._lent.values() if name in ("", lent.node.id)), None)

    def _follow(
        self,
        run_id: str,
        run_dir: Path,
        node: str,
        lent: Lent,
        told: dict[str, Any],
        offset: int,
        label: str,
        stream: bool,
    ) -> SlurmHandle:
        handle = SlurmHandle(
            run_id,
            run_dir,
            node,
            told,
            hub=self._hub,
            agent=lent.agent,
            adjustable=lent.adjustable,
            echo=functools.partial(self._echo, label) if stream else None,
            offset=offset,
            logger=self._logger,
        )
        self._handles[str(run_dir)] = handle
        handle.when_over(lambda: self._handles.pop(str(run_dir), None))
        if (report := ended_with(run_dir, self._logger.error)) is not None:  # it was quicker than the answer
            handle.exited(report)
        return handle


def _own_folder(run_dir: Path) -> Path:
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
