"""The pool without Prefect, on several nodes: the real controller, scheduler and driver, and a list of gangs."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks._gangs.trainings import ENV_NAMESPACE
from prefect_gpu.runtime.controller import ABILITIES, Controller
from prefect_gpu.runtime.drivers.base import Driver, ExitReport, LaunchSpec
from prefect_gpu.runtime.drivers.process import ProcessDriver
from prefect_gpu.runtime.launch import Launch
from prefect_gpu.runtime.records import RunRecord
from prefect_gpu.scheduling import Scheduler
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.instructions import Hold
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.granting import grant, joined
from prefect_gpu.scheduling.profiles import Profile
from prefect_gpu.storage.row import ContentionRow, HistoryRow
from prefect_gpu.storage.row import Outcome as Ending
from prefect_gpu.training.protocol import ENV_CPUS

if TYPE_CHECKING:
    from prefect_gpu.demo.lab.docker_nodes import Lab
    from prefect_gpu.runtime.drivers.handle import ProcessHandle
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State

ROOT = Path(__file__).resolve().parents[2]
_DEADLINE_S = 900.0
_FIRST_PORT = 21000
CORES, CORES_ASKED = 48, 8  # of a node and of an instance, as in our simulation of the paper; in the books only
PRELOAD = ("numpy", "torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "prefect_gpu.training")
PLACING_ALONE = replace(ABILITIES, preemption=Preemption.NONE, gates=False)
logger = logging.getLogger("benchmarks.gangs")


@dataclass(frozen=True)
class Program:
    """A model, as far as it matters here.

    Attributes:
        gradient_bytes: What the instances exchange after each step.
        compute_s: Seconds for which a GPU would compute in each step.
        steps: Of a whole training.
    """

    name: str
    gradient_bytes: int
    compute_s: float
    steps: int


@dataclass(frozen=True)
class Gang:
    """One job: a program on so many workers, with one device each.

    Attributes:
        estimate: What the scheduler is told of it.
        measured: Whether the pool knows its program by name, so that it is measured beside others on its nodes.
        preemptible: Whether it may be stopped at a checkpoint.
    """

    name: str
    program: Program
    workers: int
    submit_s: float = 0.0
    estimate: Estimate = UNKNOWN
    measured: bool = False
    preemptible: bool = False

    def request(self, cores: int = CORES_ASKED) -> Request:
        """What it asks for, with so many cores for each worker."""
        kind = self.program.name if self.measured else ""
        return Request(gpus=1, workers=self.workers, cpus=cores, kind=kind, preemptible=self.preemptible)


@dataclass(frozen=True)
class Outcome:
    """A gang that is over; all times in seconds after the first submission.

    Attributes:
        granted_s: At its last launch, as are ``training_s`` and ``nodes``.
        nodes: Where its instances were.
        step_s: How long its steps took, from its last launch on.
        cpu_s: Processor seconds of all its instances.
        stops: How often it was stopped.
        trained_s: For how long it trained, all launches together.
    """

    gang: Gang
    submitted_s: float
    granted_s: float
    training_s: float
    ended_s: float
    nodes: tuple[str, ...]
    step_s: tuple[float, ...]
    cpu_s: float
    stops: int = 0
    trained_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """From submission to the end of the last instance."""
        return self.ended_s - self.submitted_s


@dataclass
class _Spent:
    """What a gang has spent, all its launches together."""

    cpu_s: float = 0.0
    trained_s: float = 0.0
    stops: int = 0


class Fixed(PlacementPolicy):
    """Each gang where it is told to go; for measuring one alone."""

    def __init__(self, places: dict[str, tuple[str, ...]]) -> None:
        self._places = places

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        taken: set[str] = set()
        parts = []
        for name in self._places[job.id]:
            device = next((one.id for one in state.free_devices(name) if one.id not in taken), None)
            if device is None:
                return None
            taken.add(device)
            parts.append(grant(job, state.nodes[name], (device,), state, sharing))
        return joined(parts)


class NamespaceDriver(ProcessDriver):
    """Starts instances in the nodes' network namespaces, as forks of one interpreter that has PyTorch loaded.

    A context manager; closing it in between, as each controller does, only lets go of the runs.

    Args:
        node_of: The node on which instance 0 of a run is.
    """

    local = False

    def __init__(self, lab: Lab) -> None:
        super().__init__(warm=True, preload=PRELOAD, logger=logger)
        self._addresses = {node.name: node.address for node in lab.nodes}
        self._port = _FIRST_PORT
        self.node_of: Callable[[str], str] = lambda run_id: lab.nodes[0].name

    async def __aenter__(self) -> NamespaceDriver:
        await self.start()
        assert self._warm is not None
        await self._warm._settled.wait()  # nothing is measured before it has loaded PyTorch
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().close()

    async def close(self) -> None:
        """A pool ends: its runs are let go of, and the interpreter stays."""
        for handle in tuple(self._handles):
            handle.release()

    def meeting_point(self, run_id: str, run_dir: Path) -> tuple[str, int]:
        """See the base class. Each run has a port of its own: an earlier one's may not be free again yet."""
        self._port += 1
        return self._addresses[self.node_of(run_id)], self._port

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        """See the base class. The node's cores are none of this machine's, so that nobody is bound to them."""
        inside = {ENV_NAMESPACE: f"/var/run/netns/{spec.node}", ENV_CPUS: ""}
        return await super().launch(replace(spec, env={**spec.env, **inside}, cpus=()))


class Nodes(Protocol):
    """Where gangs run: see :class:`~benchmarks._gangs.cluster.Cluster`."""

    lab: Lab
    nodes: tuple[Node, ...]
    cores_asked: int


class Pool:
    """Runs gangs under a profile. A context manager; the controller's host.

    Args:
        folder: For this pool alone.
        driver: Starts the instances.
        stops: Whether gangs that say so may be stopped at a checkpoint, to carry on later.

    Attributes:
        contention: What was measured of gangs beside each other, as the history would keep it.
    """

    def __init__(self, cluster: Nodes, folder: Path, driver: Driver, profile: Profile, *, stops: bool = False) -> None:
        self._folder = folder
        self._cores = cluster.cores_asked
        self._gangs: dict[str, Gang] = {}
        self._over: dict[str, asyncio.Event] = {}
        self._times: dict[str, dict[str, float]] = {}
        self._places: dict[str, tuple[str, ...]] = {}
        self._spent: dict[str, _Spent] = {}
        self.contention: list[dict[str, Any]] = []
        self._failed: dict[str, str] = {}
        abilities = replace(PLACING_ALONE, preemption=Preemption.GRACEFUL) if stops else PLACING_ALONE
        (folder / "marks").mkdir(parents=True, exist_ok=True)
        self.controller = Controller(
            self,
            nodes=cluster.nodes,
            driver=driver,
            state_dir=folder / "state",
            pool="network",
            profile="fifo",
            abilities=abilities,
            channel_host=cluster.lab.gateway,
            logger=logger,
        )
        self.controller.scheduler = Scheduler(profile, abilities)
        if isinstance(driver, NamespaceDriver):
            driver.node_of = lambda run_id: self.controller.runs[run_id].record.placement.node

    async def __aenter__(self) -> Pool:
        await self.controller.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run_id in list(self.controller.runs):
            await self.controller.stop(run_id, 1.0)
        await self.controller.close()

    async def run(self, gangs: Sequence[Gang]) -> list[Outcome]:
        """Submit each gang when it is due, and wait until all are over.

        Raises:
            RuntimeError: A gang failed. The message has the end of its output.
            asyncio.TimeoutError: They take longer than a quarter of an hour.
        """
        began = time.time()
        in_order = sorted(gangs, key=lambda one: one.submit_s)
        for submit_s, together in itertools.groupby(in_order, key=lambda one: one.submit_s):
            await asyncio.sleep(max(0.0, began + submit_s - time.time()))
            self.submit(*together)
        await asyncio.wait_for(asyncio.gather(*(self._over[gang.name].wait() for gang in gangs)), _DEADLINE_S)
        self.check()
        return [self._outcome(gang, began) for gang in gangs]

    def check(self) -> None:
        """Nothing has gone wrong so far.

        Raises:
            RuntimeError: A gang failed. The message has the end of its output.
        """
        if self._failed:
            raise RuntimeError("; ".join(f"{name} failed: {words}" for name, words in self._failed.items()))

    async def end(self, gang: Gang) -> None:
        """Cancel a gang, and wait until it is gone."""
        await self.controller.stop(gang.name, 0.0)
        await asyncio.wait_for(self._over[gang.name].wait(), _DEADLINE_S)

    def submit(self, *gangs: Gang) -> None:
        """Put gangs into the queue, all before anything is decided."""
        now = time.time()
        events = []
        for gang in gangs:
            self._gangs[gang.name] = gang
            self._over[gang.name] = asyncio.Event()
            self._spent[gang.name] = _Spent()
            self._times[gang.name] = {"submitted": now}
            request = gang.request(self._cores)
            events.append(ev.JobSubmitted(gang.name, request, "default", now, now, gang.name, gang.estimate))
        self.controller.handle(ev.Together(tuple(events)))

    def _outcome(self, gang: Gang, began: float) -> Outcome:
        times = self._times[gang.name]
        spent = self._spent[gang.name]
        said = json.loads(self._marks(gang.name).read_text())
        return Outcome(
            gang,
            times["submitted"] - began,
            times["granted"] - began,
            times["training"] - began,
            times["ended"] - began,
            self._places[gang.name],
            tuple(said["step_s"]),
            spent.cpu_s,
            spent.stops,
            spent.trained_s,
        )

    def _marks(self, name: str) -> Path:
        return self._folder / "marks" / f"{name}.json"

    # -- the controller's host ------------------------------------------------------------------------------------

    def describe(self, run_id: str) -> RunRecord:
        """See Host."""
        gang = self._gangs[run_id]
        record = RunRecord(
            run_id, gang.name, "network", "default", "", gang.request(self._cores), Placement("", (), ())
        )
        record.times["submitted"] = self._times[run_id]["submitted"]
        record.known = {"flow_name": gang.program.name, "parameters": {}}
        return record

    async def prepare(self, run: Launch) -> LaunchSpec:
        """See Host."""
        gang = self._gangs[run.run_id]
        self._places[run.run_id] = tuple(part.node for part in run.record.placement.parts)
        program = gang.program
        order = json.dumps(
            {
                "gradient_bytes": program.gradient_bytes,
                "compute_s": program.compute_s,
                "steps": program.steps,
                "saves": gang.preemptible,
                "marks": str(self._marks(run.run_id)),
            }
        )
        argv = (sys.executable, "-m", "benchmarks._gangs.trainings", order)
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(ROOT)}
        return LaunchSpec(run.run_id, run.folder, argv, env, ROOT, stream_output=False)

    async def launched(self, run: Launch) -> None:
        """See Host."""

    def held(self, hold: Hold) -> None:
        """See Host."""

    def reported(self, run: Launch, kind: str) -> None:
        """See Host."""

    async def finalise(self, run: Launch, report: ExitReport) -> tuple[Ending | None, str]:
        """See Host."""
        times = self._times[run.run_id]
        times["ended"] = time.time()
        times["granted"] = run.record.times["granted"]
        times["training"] = run.record.times.get("training", times["ended"])
        spent = self._spent[run.run_id]
        spent.cpu_s += report.cpu_seconds or 0.0
        spent.trained_s += times["ended"] - times["training"]
        if run.cancelling:
            return "cancelled", ""
        if report.returncode == 0:
            return "completed", ""
        self._failed[run.run_id] = "\n".join((report.cause, *report.tail[-8:]))
        return "failed", self._failed[run.run_id]

    async def give_way(self, run: Launch, reason: str) -> bool:
        """See Host. It waits again at once: there is nobody else to ask."""
        now, spent = time.time(), self._spent[run.run_id]
        spent.stops += 1
        spent.trained_s += now - run.record.times.get("training", now)
        logger.info("%s was stopped: %s", run.record.name, reason)
        return True

    async def unlaunched(self, run: Launch) -> None:
        """See Host."""

    def released(self, run: Launch) -> None:
        """See Host."""
        if "ended" in self._times[run.run_id]:
            self._over[run.run_id].set()

    def record_contention(self, row: ContentionRow) -> None:
        """See Host."""
        self.contention.append(asdict(row))

    def record_history(self, row: HistoryRow) -> None:
        """See Host."""
