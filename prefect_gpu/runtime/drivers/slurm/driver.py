"""The `slurm` driver: runs are processes on nodes that Slurm lends, for a while and as they are needed.

Slurm stays the master of nodes, accounts, limits and time. What is lent is an allocation, with an agent of ours on each
of its nodes; to the scheduler each is a node that comes, and goes. The worker, its runs and the agents share the state
folder, which lies in a file system that the nodes see at the same path; or they share none, and all that they need of
each other is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Collection, Sequence
from logging import Logger, LoggerAdapter
from pathlib import Path
from typing import Any

from prefect_gpu.runtime.disk import files
from prefect_gpu.runtime.drivers.base import Coming, Driver, ExitReport, LaunchError, LaunchSpec, RunHandle, Wanted
from prefect_gpu.runtime.drivers.output import repeat
from prefect_gpu.runtime.drivers.slurm import words
from prefect_gpu.runtime.drivers.slurm.cluster import Cluster, SlurmAway
from prefect_gpu.runtime.drivers.slurm.handle import lost
from prefect_gpu.runtime.drivers.slurm.hub import AgentHub
from prefect_gpu.runtime.drivers.slurm.memory import Suspects
from prefect_gpu.runtime.drivers.slurm.nodes import Lent, node_name, node_of
from prefect_gpu.runtime.drivers.slurm.outlook import coming
from prefect_gpu.runtime.drivers.slurm.pilots import PORTS, Over, Pilot, Pilots
from prefect_gpu.runtime.drivers.slurm.reach import Reach
from prefect_gpu.runtime.drivers.slurm.runs import Runs
from prefect_gpu.runtime.drivers.slurm.shapes import Plan
from prefect_gpu.runtime.drivers.slurm.supply import Supply
from prefect_gpu.runtime.telemetry.faults import Fault
from prefect_gpu.scheduling.model.cluster import Node

_MARGIN_S = 2.0  # Slurm counts whole seconds, and ends nothing later
_CLUSTER = "cluster"  # a file: which one it is, for a time when nobody could say so
_BALANCE_S = 1.0  # from one decision on allocations to the next, if nothing happens
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
    files: Path | None

    def __init__(
        self,
        client: Cluster,
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
        self.shares_files = plan.shared
        self.files = None if plan.shared else Path(words.RUN_FOLDER)
        self.locks = self._folder / "locks" if plan.shared else Path(words.NODE_FOLDER) / "locks"
        self._settings = agents
        self._logger = logger
        self._pilots = Pilots(client, self._folder, prefix, logger, ports=3 if tunnel else 0)
        self._supply = Supply(client, plan, self._pilots, logger)
        self._reach = Reach(tunnel, logger)
        self._hub = AgentHub(self._heard, host=host, port=port, advertise=advertise, logger=logger)
        self._lent: dict[str, Lent] = {}  # by agent
        self._told = frozenset[str]()  # agents whose nodes the worker knows
        self._describing: dict[str, asyncio.Task[None]] = {}
        self._runs = Runs(
            self._hub,
            lent=self._lent_node,
            connecting=self._connecting,
            is_lent=self._runs_in_any,
            loss_of=self._loss_of,
            echo=echo or repeat,
            comes_back_s=comes_back_s,
            logger=logger,
        )
        self._suspects = Suspects()
        first = random.choice(PORTS)
        self._meeting_ports = itertools.cycle((*range(first, PORTS.stop), *range(PORTS.start, first)))
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
        (self._folder / "locks").mkdir(exist_ok=True)
        await asyncio.to_thread(self._pilots.load)
        await self._hub.start()
        tunnel = self._reach.begin(self._hub.url, self.channel())
        settings = dataclasses.replace(self._settings, url=self._hub.url, tunnel=tunnel)
        words.write_secret(self._folder / words.AGENTS, dataclasses.asdict(settings))
        self._pilots.told = settings if not self._plan.shared else None
        await self._look()
        self._hub.open()
        with contextlib.suppress(asyncio.TimeoutError):  # who is cut off is a node later
            await asyncio.wait_for(self._all_described(), self._comes_back_s)

    async def close(self) -> None:
        for task in self._describing.values():
            task.cancel()
        self._runs.release()
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
        open_nodes, self.closed_nodes, self._told = [], (), frozenset(self._lent)
        now = time.monotonic()
        for lent in sorted(self._lent.values(), key=lambda one: one.node.id):
            lent.learn_end()
            if self._hub.connected(lent.agent):
                lent.heard_at = now
            if self._takes_work(lent):
                open_nodes.append(lent.node)
            else:
                self.closed_nodes = (*self.closed_nodes, lent.node)
        return tuple(open_nodes)

    def _takes_work(self, lent: Lent) -> bool:
        """Whether something may be started on a node that Slurm has lent."""
        pilot = lent.pilot
        return (
            not (lent.ending or pilot.given_back)
            and time.monotonic() - lent.heard_at < _UNHEARD_S
            and pilot.job is not None
            and pilot.job.runs
            and not (self._plan.one_run and pilot.record.run)
            and lent.host not in self._supply.drained
            and pilot.record.shared == self._plan.shared  # else it is an earlier worker's
        )

    async def watch_nodes(self, tell: Callable[[Sequence[Node]], None]) -> None:
        """See :meth:`.Driver.watch_nodes`. Allocations are asked for, and given back, as the queue needs them.

        Whoever is given back takes no work from that moment on: between the decision and the word to the scheduler,
        nothing else happens.
        """
        known: tuple[Sequence[Node], Sequence[Node]] | None = None
        while True:
            await self._look()
            if self.may_start():
                decision = self._supply.decide(self.demand(), self._is_busy, self._is_drained)
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
        connecting = bool(self._describing) or not self._lent.keys() <= self._told
        serving = {lent.pilot.name for lent in self._lent.values() if self._takes_work(lent)}
        return coming(run, self._supply, connecting, serving, self._reach.trouble, self._lacking(run))

    def _is_busy(self, pilot: Pilot, busy: Collection[str]) -> bool:
        """Whether something runs in an allocation, or is about to, of which these nodes have something."""
        nodes = {lent.node.id for lent in self._lent.values() if lent.pilot is pilot}
        return not nodes.isdisjoint(busy) or self._runs.are_on(nodes)

    def _is_drained(self, pilot: Pilot) -> bool:
        """Whether an administrator wants one of its nodes empty."""
        return any(lent.host in self._supply.drained for lent in self._lent.values() if lent.pilot is pilot)

    # -- allocations ----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        for pilot, over in await self._supply.look():
            self._lose(pilot, over)
        self._admit_all()
        await self._reach.keep(self._pilots.all.values())

    def _admit_all(self) -> None:
        for pilot in self._pilots.all.values():
            self._admit(pilot)

    def _admit(self, pilot: Pilot) -> None:
        """Let an allocation's agents connect, and ask them what they have."""
        for rank in range(pilot.record.agents):
            agent = words.agent_id(pilot.name, rank)
            if agent not in self._describing and agent not in self._lent:
                self._hub.admit(agent, pilot.record.token)
                self._describing[agent] = asyncio.create_task(self._describe(pilot, agent), name=f"agent {agent}")

    async def _describe(self, pilot: Pilot, agent: str) -> None:
        try:
            told = await self._hub.ask(agent, words.DESCRIBE)
            self._reach.works()
            part = pilot.record.part_of(int(agent.rpartition(".")[2]))
            node = node_of(node_name(told, part), told)
            for finding in told["findings"]:
                self._logger.info("Node %s: %s", node.id, finding)
            self._lent[agent] = Lent(
                node, pilot, agent, bool(told["adjustable"]), time.monotonic(), str(told["address"])
            )
            if node.devices or not self._plan_devices(pilot, part):
                self._pilots.began(pilot)
            else:
                self._has_none(pilot, node)
        except LaunchError as error:
            self._logger.debug("Agent %s: %s", agent, error)
        finally:
            self._describing.pop(agent, None)
            self._changed.set()

    def _has_none(self, pilot: Pilot, node: Node) -> None:
        """A node has no GPU that can be used. If no node of its allocation has one, the allocation is given back."""
        said = f"Node {node.id} has no GPU that can be used, and its shape {pilot.record.shape!r} asks for some"
        ours = [lent.node for lent in self._lent.values() if lent.pilot is pilot]
        if not pilot.begun and len(ours) == pilot.record.agents and not any(one.devices for one in ours):
            self._pilots.useless(pilot, f"{said}: the worker's log says what it found there")
        else:
            self._logger.error("%s.", said)

    def _lacking(self, run: Wanted) -> list[str]:
        """Nodes that have fewer devices than a run needs, though their shape asks for enough."""
        return sorted(
            lent.node.id
            for agent, lent in self._lent.items()
            if not lent.pilot.given_back
            and len(lent.node.devices)
            < run.request.gpus
            <= self._plan_devices(lent.pilot, lent.pilot.record.part_of(int(agent.rpartition(".")[2])))
        )

    def _plan_devices(self, pilot: Pilot, part: int) -> int:
        """Devices that a node of this part was to have."""
        parts = next((shape.parts for shape in self._plan.shapes if shape.name == pilot.record.shape), ())
        return parts[part].devices if part < len(parts) else 0

    async def _all_described(self) -> None:
        running = [
            task
            for agent, task in self._describing.items()
            if (pilot := self._pilots.all.get(agent.rpartition(".")[0]))
            and (pilot.job is None or pilot.job.runs)  # None: Slurm has not been heard of yet
        ]
        await asyncio.gather(*(asyncio.shield(task) for task in running))

    def _lose(self, pilot: Pilot, over: Over) -> None:
        """An allocation is over, and so is whatever ran in it."""
        agents = {words.agent_id(pilot.name, rank) for rank in range(pilot.record.agents)}
        for agent in agents:
            self._hub.drop(agent)
            self._lent.pop(agent, None)
        guilty = self._guilty(over, *self._runs.of(agents), alone=True)
        self._runs.lose(agents, lambda run_id: lost(over.why, out_of_memory=_run_of(run_id) in guilty))
        if not pilot.given_back:
            self._logger.warning("%s", over.why)
        self._changed.set()

    def _guilty(self, over: Over, *processes: str, alone: bool) -> frozenset[str]:
        """Which runs are not to carry on by themselves, of those whose processes an allocation's end took along."""
        runs = frozenset(map(_run_of, processes))
        return self._suspects.guilty(runs, alone=alone) if over.out_of_memory else frozenset()

    def _heard(self, agent: str, kind: str, data: dict[str, Any]) -> None:
        if kind in (words.EXIT, words.OUTPUT):
            self._runs.heard(agent, kind, data)
        elif kind == words.FAULTS:
            self.on_faults([files.build(Fault, one) for one in data["faults"]])
        elif kind == words.ENDING and (lent := self._lent.get(agent)) is not None:
            lent.ending = True
            self._changed.set()

    # -- runs -----------------------------------------------------------------------------------------------------

    async def launch(self, spec: LaunchSpec) -> RunHandle:
        run_dir = _own_folder(spec.run_dir)
        lent = self._lent_node(spec.node)
        if lent is None or (self._plan.one_run and not self._dedicate(lent, spec)):
            failed = LaunchError(f"node {spec.node!r} takes no work now")
            failed.away = True
            raise failed
        spec = dataclasses.replace(spec, env=self._reach.environment(spec.env, lent.pilot.record))
        return await self._runs.launch(lent, spec, run_dir)

    def _dedicate(self, lent: Lent, spec: LaunchSpec) -> bool:
        """Where each run has a job of its own: let this one be the run's, and take no other."""
        dedicated = self._pilots.dedicate(lent.pilot, _run_of(spec.run_id))
        self._changed.set()
        return dedicated

    def meeting_point(self, run_id: str, run_dir: Path, node: str = "") -> tuple[str, int]:
        """See :meth:`.Driver.meeting_point`. Which ports of a node are free cannot be seen from here: each is new."""
        lent = self._lent_node(node)
        return lent.address if lent is not None else node, next(self._meeting_ports)

    async def adopt(self, run_id: str, run_dir: Path) -> RunHandle | None:
        return await self._runs.adopt(run_id, _own_folder(run_dir))

    def _connecting(self, node: str) -> list[asyncio.Task[None]]:
        """What waits for agents of which one may be this node's."""
        return [task for agent, task in self._describing.items() if self._runs_in(agent, node)]

    async def _loss_of(self, run_id: str, node: str) -> ExitReport:
        """The end of a run that was found after its allocation had ended."""
        over = await self._pilots.end_of(node.rpartition(".")[2])
        over = over or Over(f"The allocation of its node {node} has ended.")
        return lost(over.why, out_of_memory=_run_of(run_id) in self._guilty(over, run_id, alone=False))

    def _runs_in_any(self, node: str) -> bool:
        """Whether the allocation of a node is there, as far as anybody knows."""
        return any(pilot.record.job == node.rpartition(".")[2] for pilot in self._pilots.all.values())

    def _runs_in(self, agent: str, node: str) -> bool:
        pilot = self._pilots.all.get(agent.rpartition(".")[0])
        return pilot is not None and pilot.record.job == node.rpartition(".")[2]

    def _lent_node(self, name: str) -> Lent | None:
        """The node of that name; with an empty one, any."""
        return next((lent for lent in self._lent.values() if name in ("", lent.node.id)), None)


def _run_of(process: str) -> str:
    """The run that a process belongs to: an instance of a gang is called RUN.RANK."""
    return process.partition(".")[0]


def _own_folder(run_dir: Path) -> Path:
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
