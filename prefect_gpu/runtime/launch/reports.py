"""What a run reports, as the events that the scheduler understands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any, TypeGuard

from prefect_gpu.runtime.launch.launch import Follower, Launch
from prefect_gpu.scheduling.model import events as ev
from prefect_gpu.scheduling.model.instructions import Move
from prefect_gpu.scheduling.model.jobs import Status
from prefect_gpu.training import protocol

STATUS_OF_PHASE = {
    protocol.PREPARING: Status.PREPARING,
    protocol.TRAINING: Status.TRAINING,
    protocol.SAVING: Status.SAVING,
}

_EVERY_S = 1.0  # losses and speeds are told the scheduler once in this time: it looks at intervals


class Phases(Follower):
    """Tells the scheduler which phase a run is in."""

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> Iterator[ev.Event]:
        """See :class:`.Follower`.

        A run that was launched behind another one is *preparing*, for the scheduler, when it waits for its devices:
        from then on it could train. What comes before is part of its launch. Of a run that moves, the scheduler knows
        the launch at its next place: what the process that is to leave still does is not that launch's phase.
        """
        if isinstance(launch.eviction, Move):
            return
        status = STATUS_OF_PHASE.get(launch.phase) if kind == protocol.PHASE else None
        if status is not None and (status is not Status.PREPARING or not launch.record.gated or launch.waiting):
            yield ev.PhaseEntered(launch.run_id, status)


class Measurements(Follower):
    """Tells the scheduler the losses and the speed of one launch, and how much it uses its devices."""

    def __init__(self) -> None:
        self._told_at = -math.inf
        self._losses: list[float] = []  # since then

    def reported(self, launch: Launch, kind: str, at: float, data: dict[str, Any]) -> Iterator[ev.Event]:
        """See :class:`.Follower`. A loss is told as the mean since it was last told."""
        if kind == protocol.USAGE:
            use: object = data.get("device_util")
            if launch.phase == protocol.TRAINING and _is_number(use) and 0 <= use <= 1:
                yield ev.UtilisationMeasured(launch.run_id, float(use))
        if kind != protocol.PROGRESS:
            return
        if launch.phase != protocol.TRAINING:
            self._losses.clear()
            return
        points = data.get("losses") or [(None, data.get("loss"))]
        self._losses += [float(one) for _, one in points if _is_number(one)]
        if at - self._told_at < _EVERY_S:
            return
        speed: object = data.get("steps_per_s")
        if self._losses or _is_number(speed):
            self._told_at = at
        if self._losses:
            yield ev.LossReported(launch.run_id, fmean(self._losses))
            self._losses.clear()
        if _is_number(speed) and speed > 0:
            yield ev.SpeedMeasured(launch.run_id, float(speed))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
