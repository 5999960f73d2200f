"""What a run reports, as the events that the scheduler understands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any, TypeGuard

from prefect_gpu.runtime.tracked import TrackedRun
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.training import protocol

STATUS_OF_PHASE = {
    protocol.PREPARING: Status.PREPARING,
    protocol.TRAINING: Status.TRAINING,
    protocol.SAVING: Status.SAVING,
}

_EVERY_S = 1.0  # losses and speeds are told the scheduler once in this time: it looks at intervals


class Reports:
    """Turns the reports of runs into events. Estimates are not its business."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._losses: dict[str, list[float]] = {}  # since then

    def phase(self, run: TrackedRun) -> ev.PhaseEntered | None:
        """The phase that the run is in now; None if that is nothing to the scheduler.

        A run that was launched behind another one is *preparing*, for the scheduler, when it waits for its devices:
        from then on it could train. What comes before is part of its launch.
        """
        status = STATUS_OF_PHASE.get(run.phase)
        if status is None or (status is Status.PREPARING and run.record.gated and not run.waiting):
            return None
        return ev.PhaseEntered(run.run_id, status)

    def progress(self, run: TrackedRun, data: dict[str, Any], at: float) -> Iterator[ev.Event]:
        """Its loss, as the mean since it was last told, and its speed; ``at`` is in Unix seconds."""
        if run.phase != protocol.TRAINING:
            self._losses.pop(run.run_id, None)
            return
        points = data.get("losses") or [(None, data.get("loss"))]
        losses = self._losses.setdefault(run.run_id, [])
        losses += [float(one) for _, one in points if _is_number(one)]
        if at - self._told_at.get(run.run_id, -math.inf) < _EVERY_S:
            return
        speed: object = data.get("steps_per_s")
        if losses or _is_number(speed):
            self._told_at[run.run_id] = at
        if losses:
            yield ev.LossReported(run.run_id, fmean(losses))
            losses.clear()
        if _is_number(speed) and speed > 0:
            yield ev.SpeedMeasured(run.run_id, float(speed))

    def usage(self, run: TrackedRun, data: dict[str, Any]) -> Iterator[ev.Event]:
        """The use of its devices."""
        use: object = data.get("device_util")
        if run.phase == protocol.TRAINING and _is_number(use) and 0 <= use <= 1:
            yield ev.UtilisationMeasured(run.run_id, float(use))

    def forget(self, run_id: str) -> None:
        """The run is over."""
        self._told_at.pop(run_id, None)
        self._losses.pop(run_id, None)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
