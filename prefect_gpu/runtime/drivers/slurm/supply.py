"""The supply of allocations: Slurm's queue is watched, and as many are asked for and given back as was decided."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from logging import Logger, LoggerAdapter
from typing import Any

from prefect_gpu.runtime.drivers.base import Demand
from prefect_gpu.runtime.drivers.slurm.cluster import Cluster, SlurmError
from prefect_gpu.runtime.drivers.slurm.demand import Decision, Held, decide
from prefect_gpu.runtime.drivers.slurm.pilots import Over, Pilot, Pilots
from prefect_gpu.runtime.drivers.slurm.shapes import Plan

IsBusy = Callable[[Pilot, Collection[str]], bool]
_LOOKS = 4  # of this many at Slurm's queue, one is at its nodes, too


class Supply:
    """See the module.

    Args:
        client: Slurm.
        plan: What the operator allows.
        pilots: The allocations that there are.

    Attributes:
        trouble: Why Slurm cannot be asked now; empty: it can.
        drained: Nodes that an administrator wants empty, each with why. Nothing more is started on them.
    """

    def __init__(self, client: Cluster, plan: Plan, pilots: Pilots, logger: Logger | LoggerAdapter[Any]) -> None:
        self.plan, self.pilots = plan, pilots
        self.trouble = ""
        self.drained: Mapping[str, str] = {}
        self._looks = 0
        self._client, self._logger = client, logger
        self._looked_at = -math.inf
        self._unneeded_since: dict[str, float] = {}  # by allocation

    async def look(self) -> list[tuple[Pilot, Over]]:
        """Look at Slurm's queue, if it is time. What there is goes on while Slurm does not answer.

        Returns:
            Allocations that are over, each with why.
        """
        if time.monotonic() - self._looked_at < self.plan.poll_s:
            return []
        self._looked_at = time.monotonic()
        try:
            over = await self.pilots.look()
        except SlurmError as error:
            self._complain(error)
            return []
        for pilot, _ in over:
            self._unneeded_since.pop(pilot.name, None)
        try:
            await self._look_at_nodes()
        except SlurmError as error:  # what is over is so all the same, and is told only once
            self._complain(error)
        else:
            self.trouble = ""
        return over

    async def _look_at_nodes(self) -> None:
        """Learn which nodes are drained, now and then, and only if there are allocations that may be on them."""
        runs = any(pilot.job is not None and pilot.job.runs for pilot in self.pilots.all.values())
        self._looks = self._looks + 1 if runs else 0
        if self._looks % _LOOKS != 1:
            return
        drained = await self._client.drained()
        for node in sorted(drained.keys() - self.drained.keys()):
            self._logger.info("Slurm's node %s is drained (%s): nothing more is started on it.", node, drained[node])
        self.drained = drained

    def decide(
        self, demand: Demand, is_busy: IsBusy, is_drained: Callable[[Pilot], bool] = lambda pilot: False
    ) -> Decision:
        """Decide how many allocations there should be. Those that are to be given back are marked so at once.

        Args:
            is_busy: Whether something runs in an allocation, given the nodes on which something does.
            is_drained: Whether an allocation has a node that an administrator wants empty.
        """
        now, held, asked = time.monotonic(), [], {shape.name: shape.asked for shape in self.plan.shapes}
        wanted = {shape.name for run in demand.waiting if (shape := self.plan.shape_for(run)) is not None}
        for pilot in self.pilots.all.values():
            if pilot.given_back:
                continue
            busy, runs = is_busy(pilot, demand.busy), pilot.job is not None and pilot.job.runs
            if not busy and pilot.record.shared != self.plan.shared:  # the operator has changed that: it takes no work
                pilot.given_back = True
                continue
            if (
                pilot.job is not None
                and pilot.job.waits
                and pilot.record.asked not in ("", asked.get(pilot.record.shape))
            ):
                self._logger.info(
                    "Slurm's job %s waits, and was asked for before the shape %r was changed: it is given back.",
                    pilot.record.job,
                    pilot.record.shape,
                )
                pilot.given_back = True
                continue
            # Waiting runs keep no allocation that has begun: they are on their way to it, or go elsewhere.
            if busy or (pilot.record.shape in wanted and not runs):
                self._unneeded_since.pop(pilot.name, None)
            since = self._unneeded_since.setdefault(pilot.name, now)
            ends_at = pilot.job.ends_at if pilot.job is not None and runs else None
            left_s = math.inf if ends_at is None else ends_at - time.time()
            used = (self.plan.one_run and bool(pilot.record.run)) or is_drained(pilot)
            held.append(Held(pilot.name, pilot.record.shape, busy, now - since, left_s, used))
        decision = decide(self.plan, demand.waiting, held)
        for name in decision.give_back:
            self.pilots.all[name].given_back = True
        return decision

    async def carry_out(self, decision: Decision) -> None:
        """Tell Slurm. What it does not hear now is said again the next time."""
        try:
            await self.pilots.give_back()
            for shape in self.plan.shapes:
                for _ in range(decision.submit.get(shape.name, 0)):
                    if await self.pilots.submit(shape) is None:
                        break
        except SlurmError as error:
            self._complain(error)

    def _complain(self, error: SlurmError) -> None:
        if self.trouble != str(error):
            self.trouble = str(error)
            self._logger.warning("Slurm does not answer: %s. What runs goes on, and it is asked again.", error)
