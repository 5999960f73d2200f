"""A pool of real processes whose runs leave their place when a test says so."""

from __future__ import annotations

import dataclasses

from benchmarks._host.pool import Pool
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.cluster import Placement
from prefect_gpu.scheduling.reaction import Reaction


class Orders(Reaction):
    """Preempts and moves what it is told to: what policies want it for is no matter here."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, str | None]] = []

    def react(self, event: ev.Event, decision: Decision) -> bool:
        """See Reaction."""
        changed = False
        while self.waiting:
            run_id, device = self.waiting.pop()
            job = decision.state.running[run_id]
            assert job.placement is not None and decision.may_stop(job)
            if device is None:
                decision.preempt(job, "it is to wait")
            else:
                place: Placement = dataclasses.replace(job.placement, devices=(device,))
                decision.move(job, place, "it is to move")
            changed = True
        return changed


class OrderedPool(Pool):
    """See the module."""

    async def begin(self) -> None:
        """See the base class."""
        await super().begin()
        self._orders = Orders()
        scheduler = self.controller.scheduler
        reactions = (*scheduler.profile.reactions, self._orders)
        scheduler.profile = dataclasses.replace(scheduler.profile, reactions=reactions)

    def leave(self, name: str, to: str | None = None) -> None:
        """A run is to leave its place: for a device, or to wait."""
        self._orders.waiting.append((name, to))
        self.controller.handle(ev.TimePassed())
