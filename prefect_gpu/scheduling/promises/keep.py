"""Starts runs when their promises cannot wait any longer, and makes room for them."""

from __future__ import annotations

from prefect_gpu.scheduling.allocation.base import Action
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.state.fits import without


class KeepPromises(Action):
    """To stand before all other actions: nobody else is to get the devices that a promise needs now.

    A job whose plan begins now starts where there is room, else on the nodes of its plan: runs there that may be
    stopped, and were promised nothing, make room, those that started last first.
    """

    def act(self, decision: Decision) -> bool:
        """See the class. It leaves all other jobs to the actions after it."""
        book = decision.state.promises
        if not book.jobs:
            return False
        for job, why in book.refresh():
            decision.at_risk(job, why)
        for job in book.due():
            if decision.state.limit_on(job.queue) is None and not _beyond_its_limit(decision, job):
                self._start(decision, job)
        moment = book.next_start()
        if moment is not None:
            decision.look_again_at(moment)
        return False

    def _start(self, decision: Decision, job: Job) -> None:
        state = decision.state
        decision.about = job
        found = decision.placement.place(job, state, decision.sharing)
        victims: list[Job] = []
        if found is None:
            found, victims = self._by_stopping(decision, job)
        decision.about = None
        if found is None:
            return
        for victim in victims:
            decision.preempt(victim, f"{job.label} was promised its devices from now on")
        decision.launch(job, found, "its deadline was promised" if job.promised else "its deadline leaves no more time")

    def _by_stopping(self, decision: Decision, job: Job) -> tuple[Placement | None, list[Job]]:
        """Where a job fits if some others are stopped, and which: none that has only devices that it does not want."""
        state, victims = decision.state, list[Job]()
        plan = state.promises.plans.get(job.id)
        groups = plan.devices.keys() if plan is not None else set[str]()
        nodes = {node.id for node in state.nodes.values() if not groups.isdisjoint(node.groups.values())}
        kept = {device.id for node in state.nodes.values() if node.id not in nodes for device in node.devices}
        found: Placement | None = None
        for victim in self._who_may_go(decision, nodes):
            victims.append(victim)
            found = self._placed_without(victims, decision, job, kept)
            if found is not None:
                break
        for victim in victims[:-1] if found is not None else ():
            others = [one for one in victims if one is not victim]
            placed = self._placed_without(others, decision, job, kept)
            if placed is not None:
                found, victims = placed, others
        return found, victims

    @staticmethod
    def _who_may_go(decision: Decision, nodes: set[str]) -> list[Job]:
        state = decision.state
        there = [
            job
            for job in state.running.values()
            if job.placement is not None
            and job.status is not Status.SAVING
            and not state.promises.protects(job)
            and nodes.intersection(job.placement.nodes)
            and decision.may_give_way(job)
        ]
        return sorted(there, key=lambda job: (-(job.granted_at or 0.0), job.id))

    @staticmethod
    def _placed_without(victims: list[Job], decision: Decision, job: Job, kept: set[str]) -> Placement | None:
        state = decision.state
        behind = [state.successor(victim.id) for victim in victims]
        with without([*victims, *(one for one in behind if one is not None)], state):
            return decision.placement.place(job, state, decision.sharing, kept)


def _beyond_its_limit(decision: Decision, job: Job) -> bool:
    """Whether its owner, or a group of its owner's, would have more than its limit: no promise allows that."""
    kept_back = decision.kept_back(job.request)
    return kept_back is not None and kept_back[0] == "share-limit"
