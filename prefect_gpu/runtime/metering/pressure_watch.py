"""Tells the scheduler of a node's pressure, as long as runs without devices compute beside training."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from prefect_gpu.runtime.telemetry.pressure import PressureMeter
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Status

if TYPE_CHECKING:
    from prefect_gpu.runtime.launch.launch import Launch
    from prefect_gpu.scheduling.model.cluster import Node
    from prefect_gpu.scheduling.state.state import State

EVERY_S = 2.0


class PressureWatch:
    """Looks every few seconds; says nothing where there is nobody to protect, or nobody to protect from.

    Args:
        node: The node.
        state: The scheduler's books.
        runs: Those that are launched, by id.
        tell: Takes the event.
        meter: Measures the node.
        clock: Seconds.
    """

    def __init__(
        self,
        node: Node,
        state: State,
        runs: Mapping[str, Launch],
        tell: Callable[[ev.Event], None],
        meter: PressureMeter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._state, self._runs, self._tell, self._clock = node, state, runs, tell, clock
        self._meter = meter or PressureMeter(node.memory_bps)
        self._busy: dict[str, tuple[float, float]] = {}  # (when, seconds of processor time) of each flow
        self._told = False

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.look()

    def look(self) -> None:
        """Measure, and tell; once more, that all is well, when it has come to an end."""
        flows, trains = [], False
        for job in self._state.running.values():
            if not job.request.total_gpus:
                flows.append(job.id)
            trains |= job.status is Status.TRAINING and bool(job.request.total_gpus)
        if not flows or not trains:
            self._busy.clear()
            if self._told:
                self._told = False
                self._tell(ev.PressureMeasured(self._node.id, 0.0))
            return
        pressure = self._meter.read() or 0.0
        use = [(name, self._use(name)) for name in flows]
        self._told = True
        self._tell(ev.PressureMeasured(self._node.id, pressure, tuple(use)))

    def _use(self, name: str) -> float:
        """Part of the node's cores that a flow has kept busy since the last look, 0 to 1."""
        run = self._runs.get(name)
        seconds = run.handle.busy_seconds() if run is not None and run.handle is not None else None
        if seconds is None:
            return 0.0
        now, last = self._clock(), self._busy.get(name)
        self._busy[name] = (now, seconds)
        if last is None or now <= last[0]:
            return 0.0
        return min(1.0, max(0.0, seconds - last[1]) / (now - last[0]) / max(1, len(self._node.cpus)))
