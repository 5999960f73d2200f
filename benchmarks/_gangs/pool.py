"""Gangs on several nodes: what they are, who starts their instances, and the pool that runs them."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._gangs.trainings import ENV_NAMESPACE
from benchmarks._host.drivers import WarmDriver
from benchmarks._host.pool import ROOT, Course, Pool, Run, module, without_ours
from prefect_gpu.runtime.controller import ABILITIES
from prefect_gpu.runtime.drivers.base import LaunchSpec
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.jobs import UNKNOWN, Estimate, Request
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.granting import grant, joined
from prefect_gpu.training.protocol import ENV_CPUS, TRAINING

if TYPE_CHECKING:
    from prefect_gpu.lab.docker_nodes import Lab
    from prefect_gpu.runtime.drivers.handle import ProcessHandle
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State

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


class NamespaceDriver(WarmDriver):
    """Starts instances in the nodes' network namespaces, as forks of one interpreter that has PyTorch loaded."""

    local = False

    def __init__(self, lab: Lab) -> None:
        super().__init__(*PRELOAD, logger=logger)
        self._addresses = {node.name: node.address for node in lab.nodes}
        self._port = _FIRST_PORT

    def meeting_point(self, run_id: str, run_dir: Path, node: str = "") -> tuple[str, int]:
        """See the base class. Each run has a port of its own: an earlier one's may not be free again yet."""
        self._port += 1
        return self._addresses[node], self._port

    async def launch(self, spec: LaunchSpec) -> ProcessHandle:
        """See the base class. The node's cores are none of this machine's, so that nobody is bound to them."""
        inside = {ENV_NAMESPACE: f"/var/run/netns/{spec.node}", ENV_CPUS: ""}
        return await super().launch(replace(spec, env={**spec.env, **inside}, cpus=()))


class GangPool(Pool):
    """A pool of gangs.

    Args:
        folder: For this pool alone.
        cores_asked: By each instance.
        more: As of :class:`.Pool`.
    """

    def __init__(self, folder: Path, cores_asked: int, nodes: Sequence[Node], **more: Any) -> None:
        environment = {**without_ours(os.environ), "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(ROOT)}
        super().__init__(folder, nodes, environment=environment, name="gangs", **more)
        self._cores = cores_asked
        (folder / "marks").mkdir()

    async def run(self, gangs: Sequence[Gang]) -> list[Outcome]:
        """Submit each gang when it is due, and wait until all are over.

        Raises:
            RunFailed: A gang failed, or they take longer than a quarter of an hour.
        """
        began = time.time()
        in_order = sorted(gangs, key=lambda one: one.submit_s)
        for submit_s, together in itertools.groupby(in_order, key=lambda one: one.submit_s):
            await asyncio.sleep(max(0.0, began + submit_s - time.time()))
            self.submit_gangs(*together)
        courses = await self.completed(*(gang.name for gang in gangs))
        return [self._outcome(gang, course, began) for gang, course in zip(gangs, courses, strict=True)]

    def submit_gangs(self, *gangs: Gang) -> None:
        """Put gangs into the queue, all before anything is decided."""
        self.submit(*map(self._run_of, gangs))

    def _run_of(self, gang: Gang) -> Run:
        order = {
            "gradient_bytes": gang.program.gradient_bytes,
            "compute_s": gang.program.compute_s,
            "steps": gang.program.steps,
            "saves": gang.preemptible,
            "marks": str(self._marks(gang.name)),
        }
        argv = module("benchmarks._gangs.trainings", json.dumps(order))
        known = {"flow_name": gang.program.name, "parameters": {}}
        return Run(gang.name, argv, gang.request(self._cores), known=known, estimate=gang.estimate)

    def _outcome(self, gang: Gang, course: Course, began: float) -> Outcome:
        assert course.record is not None and course.report is not None
        times = course.record.times
        said = json.loads(self._marks(gang.name).read_text())
        return Outcome(
            gang,
            course.submitted - began,
            times["granted"] - began,
            times[TRAINING] - began,
            course.ended - began,
            tuple(part.node for part in course.record.placement.parts),
            tuple(said["step_s"]),
            course.report.cpu_seconds or 0.0,
            len(course.left),
            course.trained_s,
        )

    def _marks(self, name: str) -> Path:
        return self.folder / "marks" / f"{name}.json"
