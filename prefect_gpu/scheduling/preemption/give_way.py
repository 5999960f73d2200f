"""Devices that are kept for somebody late do not idle: until it can start, those use them that are stopped for it."""

from __future__ import annotations

import math
from collections.abc import Container

from prefect_gpu.scheduling.allocation.reservations import Reservation, expected_start, gone_at, held_until
from prefect_gpu.scheduling.decision import Decision
from prefect_gpu.scheduling.model.abilities import Preemption
from prefect_gpu.scheduling.model.jobs import Job, Status
from prefect_gpu.scheduling.preemption.minimum_runtime import left_alone_for_s, left_alone_until
from prefect_gpu.scheduling.preemption.units import credit_of, is_spared
from prefect_gpu.scheduling.state.fits import usable_now
from prefect_gpu.scheduling.state.lengths import expected_left


class GiveWay:
    """What is kept for a job that others are stopped for, and who may use it until then.

    The job waits for runs that nobody stops. Until the moment at which these are expected to be gone, its other devices
    would idle. So whoever gives way for it, and is not left alone there for longer than until then, starts on them.
    """

    @staticmethod
    def reserve(decision: Decision, job: Job, kept: Container[str]) -> Reservation:
        """What is kept for a job that cannot start.

        Args:
            kept: Devices that are kept for jobs before it.
        """
        state, now = decision.state, decision.now
        graceful, shares = decision.abilities.preemption is Preemption.GRACEFUL, state.quotas.shares is not None

        def end_of(run: Job) -> float:
            left_s = expected_left(run, now, state.learned.lengths)[0]
            spared = run.stops and not shares and is_spared(credit_of(run, now), left_s)
            if run.status is not Status.SAVING and decision.may_stop(run) and not spared:
                return left_alone_until(run) if graceful else now
            return now + left_s + run.estimate.saving_s

        def gone(run: Job, now: float) -> float:
            """When a run is gone that nobody stops. One that has outlived its estimate is not about to end."""
            if run.remaining_s(now) != 0.0 or run.status is not Status.TRAINING:
                return gone_at(run, now)
            return now + expected_left(run, now, state.learned.lengths)[0] + run.estimate.saving_s

        usable, request = usable_now(job, state), job.request
        devices, start = expected_start(job, state, usable, kept, now, gone)
        if request.spans or request.workers > 1:  # who is gone by then delays it in no case
            start = held_until(job, state, devices, kept, lambda run: gone(run, now))
        return Reservation(job, devices, start, held_until(job, state, devices, kept, end_of))

    @staticmethod
    def left_alone_until(decision: Decision, job: Job) -> float:
        """Until when a job that starts now holds devices before it gives way for who is late; ``inf``: it does not."""
        if decision.abilities.preemption is Preemption.NONE or not decision.can_stop(job):
            return math.inf
        standing = decision.standing()
        if standing is not None and standing.is_guaranteed(job.request):  # it is stopped for nobody
            return math.inf
        if decision.abilities.preemption is Preemption.INSTANT:
            return decision.now
        return decision.now + left_alone_for_s(job) + (job.estimate.checkpoint_s or 0.0)
