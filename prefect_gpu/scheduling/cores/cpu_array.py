"""CODA's CPU array (§V.C) where nobody is stopped for cores: which ones CPU flows get, and who gives way to them.

CODA aborts a CPU job that has borrowed cores when a GPU job needs them. Most jobs may not be stopped; cores change
hands instead: a training run that never asked for so many gives some up while a CPU flow uses them, and gets them back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from prefect_gpu.scheduling.cores.ledger import give_back, jobs_on, take
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.abilities import Abilities
from prefect_gpu.scheduling.model.cluster import Node, Placement
from prefect_gpu.scheduling.model.events import Event
from prefect_gpu.scheduling.model.jobs import Job
from prefect_gpu.scheduling.placement.base import PlacementPolicy
from prefect_gpu.scheduling.reaction import Reaction
from prefect_gpu.scheduling.sharing.rules import Sharing
from prefect_gpu.scheduling.state.fits import nodes_for
from prefect_gpu.scheduling.state.state import State

_TAKER = "lending"


def in_array(job: Job) -> bool:
    """Whether the job needs no device and says how many cores it needs: only such jobs wait for cores."""
    request = job.request
    return request.total_gpus == 0 and request.cpus is not None and not request.is_gang


class CpuArray(PlacementPolicy):
    """Places runs without devices that say how many cores they need; all others are placed by another policy.

    The CPU array of a node has all its cores but those that training needs: of each training run what was found for it
    or what it asked for, else one for each device, and one for each device that is free. It has at least one. CPU
    flows wait for each other, never for training. One that is larger than the array has it alone, and one that has lost
    patience starts in any case: then cores are shared. Training runs never wait for cores. Where cores cannot be
    changed, all jobs are placed by the other policy.

    Args:
        otherwise: For all other jobs.
    """

    def __init__(self, otherwise: PlacementPolicy) -> None:
        self._otherwise = otherwise

    def suited_to(self, abilities: Abilities) -> PlacementPolicy:
        """See the class."""
        return self if abilities.cores else self._otherwise.suited_to(abilities)

    def why(self, placement: Placement) -> str:
        """See :class:`.PlacementPolicy`."""
        return self._otherwise.why(placement)

    def kind_for(self, job: Job, state: State) -> str | None:
        """See :class:`.PlacementPolicy`."""
        return self._otherwise.kind_for(job, state)

    def declines(self, job: Job, state: State) -> str:
        """See :class:`.PlacementPolicy`."""
        return self._otherwise.declines(job, state)

    def place(self, job: Job, state: State, sharing: Sharing, kept: Container[str] = ()) -> Placement | None:
        """See the class."""
        there = (state.numbered[number].node for number in nodes_for(job, state)) if in_array(job) else ()
        nodes = [node for node in there if node.cpus]
        if not nodes:
            return self._otherwise.place(job, state, sharing, kept)
        wanted = job.request.cpus or 1
        best: tuple[int, Node] | None = None
        for node in nodes:
            used = sum(
                len(other.placement.cpus) for other in jobs_on(node.id, state) if in_array(other) and other.placement
            )
            room = self._size(node, state) - used
            fits = wanted <= room or used == 0 or job.impatient
            if fits and (best is None or room > best[0]):
                best = room, node
        if best is None:
            return None
        node = best[1]
        return Placement(node.id, (), self._choose(node, wanted, state))

    @staticmethod
    def _size(node: Node, state: State) -> int:
        """Cores of the node's CPU array."""
        size = len(node.cpus) - len(state.free_devices(node.id))
        for job in jobs_on(node.id, state):
            for part in job.placement.parts if job.placement and job.behind is None else ():
                if part.node == node.id and part.devices:
                    asked = len(part.cpus) if job.request.cpus is not None else len(part.devices)
                    size -= max(asked, state.learned.cores.needs.get(job.id, 0))
        return max(1, size)

    @staticmethod
    def _choose(node: Node, wanted: int, state: State) -> tuple[int, ...]:
        """Cores that nobody is bound to, then those of training runs that never asked for them, then any."""
        load, promised = state.core_load(node.id), Counter[int]()
        for job in jobs_on(node.id, state):
            if job.request.cpus is not None or not job.request.total_gpus:
                promised.update(core for part in job.placement.parts if part.node == node.id for core in part.cpus)  # type: ignore[union-attr]
        # From the last one on: who gives cores up keeps its first ones.
        ranked = sorted(node.cpus, key=lambda core: (promised[core], load.get(core, 0), -core))
        return tuple(sorted(ranked[:wanted]))


class Lending(Reaction):
    """Lets training runs give up cores that a CPU flow was placed on, and gives them back when nobody uses them.

    A run keeps what was found for it, else one core for each of its devices, and all that it asked for. It does nothing
    where cores cannot be changed, or where no flow is on a training run's cores, as in CODA's own arrays.
    """

    def __init__(self) -> None:
        self._lent = True  # whether anybody may have given some up

    def react(self, event: Event, decision: Decision) -> bool:
        """See :meth:`after`."""
        return False

    def after(self, decision: Decision) -> None:
        """See the class."""
        if not decision.abilities.cores:
            return
        state = decision.state
        flows = [job for job in state.running.values() if in_array(job)] if state.deviceless_count else []
        if not flows and not self._lent:
            return
        needs = state.learned.cores.needs
        lent = {(job.placement.node, core) for job in flows if job.placement for core in job.placement.cpus}
        for job in list(state.running.values()):
            request, placement = job.request, job.placement
            if placement is None or placement.others or not placement.devices or request.cpus is not None:
                continue
            if placement.node not in state.nodes:  # it was lost, and nobody can be told anything there
                continue
            least = max(len(placement.devices), needs.get(job.id, 0))
            kept = [core for core in placement.cpus if (placement.node, core) not in lent]
            kept += [core for core in placement.cpus if core not in kept][: max(0, least - len(kept))]
            if not take(job, kept, _TAKER, decision, "runs without GPUs use its other cores now"):
                give_back(job, _TAKER, decision, "these cores are free again", enough=needs.get(job.id))
        self._lent = any(_TAKER in job.cores_before for job in state.running.values())
