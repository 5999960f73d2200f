"""The placers that the papers compare with, bound to the books: each job, gang or not, goes where its kernel says."""

from __future__ import annotations

import random
from collections.abc import Container
from typing import TYPE_CHECKING

from prefect_gpu.papers.baselines.choosers import taken
from prefect_gpu.papers.baselines.portions import Portions, Whole
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.placement.best_fit import whole_nodes
from prefect_gpu.scheduling.placement.gangs import ClusterView, containers
from prefect_gpu.scheduling.placement.granting import cores_wanted, granted_gang
from prefect_gpu.scheduling.placement.kernels.containers import Free, Gang, Plan
from prefect_gpu.scheduling.placement.kernels.placer import Placer
from prefect_gpu.scheduling.placement.kernels.topology import Topology

if TYPE_CHECKING:
    from prefect_gpu.scheduling.model.jobs import Job
    from prefect_gpu.scheduling.sharing.rules import Sharing
    from prefect_gpu.scheduling.state.state import State


class ByPlacer(PlacementPolicy):
    """Places by a kernel that counts GPUs and cores.

    Cores weigh in where the kernel looks at them, but they never keep a job from its devices: what does not fit with
    them is placed without. A job that spans nodes and is larger than any takes whole nodes, as under best fit.

    Args:
        placer: The kernel.
        portions: How the devices of a node are handed out.
        servers: A kernel of its own for parameter servers; None: the same.
        seed: For kernels that draw; a job's draws depend on it and on the job's id, not on what came before.
    """

    def __init__(
        self, placer: Placer, portions: Portions | None = None, servers: Placer | None = None, seed: int = 0
    ) -> None:
        self._placer = placer
        self._portions = portions or Whole()
        self._servers = servers
        self._seed = seed
        self._view = ClusterView()

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        request = job.request
        if not state.numbered or (not request.shareable and state.free_count < request.total_gpus):
            return None
        if request.spans and request.gpus > state.largest_node:
            return whole_nodes(job, state, sharing, kept)
        topology = self._view.topology(state)
        gpus = self._portions.free_gpus(job, state, sharing, kept, self._view)
        cpus = [state.free_cores_on(books.node.id) for books in state.numbered]
        wanted = cores_wanted(job, state.numbered[0].node, request.gpus)
        for cores in (wanted, 0):
            free = Free(gpus, cpus)
            plan = self._plan(containers(request, cores), request.workers, free, topology, job)
            if plan is not None:
                return self._granted(job, plan, state, sharing, kept)
        return None

    def _plan(self, gang: Gang, workers: int, free: Free, topology: Topology, job: Job) -> Plan | None:
        rng = random.Random(f"{self._seed} {job.id}")
        if self._servers is None or workers == len(gang):
            return self._placer.place(gang, free, topology, rng)
        plan = self._placer.place(gang[:workers], free, topology, rng)
        if plan is None:
            return None
        left = free.copy()
        left.take(taken(self._placer, gang[:workers]), plan)
        # Servers stay in the domain: nodes of others are shown as having no core and no room.
        here = topology.domains == topology.domains[plan[0]]
        left.cpus[~here] = -1
        left.gpus[~here] = -1
        servers = self._servers.place(gang[workers:], left, topology, rng)
        return None if servers is None else plan + servers

    def _granted(self, job: Job, plan: Plan, state: State, sharing: Sharing, kept: Container[str]) -> Placement | None:
        request = job.request
        left = {
            number: self._portions.cut(job, state.numbered[number], state, sharing, kept)
            for number in set(plan[: request.workers])
        }
        workers: list[tuple[Node, tuple[str, ...]]] = []
        for number in plan[: request.workers]:
            node = state.numbered[number].node
            if request.gpus and not left[number]:
                return None
            devices = set(left[number].pop(0)[: request.gpus]) if request.gpus else set()
            workers.append((node, tuple(device.id for device in node.devices if device.id in devices)))
        servers = [state.numbered[number].node for number in plan[request.workers :]]
        return granted_gang(job, workers, servers, state, sharing)
